"""The content of the log, a full disk, and the draw of shadow queries."""

import json
import os
import warnings

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE, gateway, make_policy

from rcjax.serving.failures import CascadeWarning


def answers(request, headers):
    return Response(sure("A", SURE))


#: Fields of a request that hold what was asked, or say who asks.
FIELDS = {
    "documents": [{"title": "s3cret", "text": "s3cret"}],
    "metadata": {"note": "s3cret"},
    "session": "s3cret",
    "api_base": "http://s3cret",
    "api_key": "s3cret",
    "s3cret": 1,
    "stop": ["s3cret" * 20],
    "options": {"top_k": 1, "system": "s3cret"},
    "large": "s3cret" * 500_000,
    "biases": {str(i): 1 for i in range(20_000)},
}


@pytest.mark.parametrize("model", ["policy", "large"])
def test_no_field_of_a_request_is_content_in_the_log(service, model):
    for name, value in FIELDS.items():
        service.forget()
        assert service.ask(model=model, temperature=0.5, **{name: value}).status == 200
        rows = service.log_rows()
        text = json.dumps(rows)
        assert "s3cret" not in text
        assert len(text) < 2_000
        asked = [json.loads(row["request_settings"]) for row in rows if "request_settings" in row]
        assert [one["options"]["temperature"] for one in asked] == [0.5] * (model == "policy")


def counts(service):
    lines = service.get("/metrics").body.decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if line.startswith("rcjax_log_lines_total")]
    return {name.partition('outcome="')[2].rstrip('"}'): float(number) for name, _, number in pairs}


def test_a_full_disk_is_counted_and_reported_again_after_each_recovery():
    """The name of the log is moved to /dev/full and back; two policies and a model write to the log."""
    with (
        warnings.catch_warnings(record=True) as caught,
        gateway({"a": make_policy(), "b": make_policy()}, answers) as s,
    ):
        warnings.simplefilter("always", CascadeWarning)
        log = s.folder / "calls.jsonl"
        for round_ in (1, 2):
            os.symlink("/dev/full", s.folder / "full")
            os.replace(s.folder / "full", log)
            assert {s.ask(model=model).status for model in ("a", "b", "large", "a", "b")} == {200}
            s.wait_until_idle()
            assert counts(s) == {"written": 2.0 * (round_ - 1), "lost": 5.0 * round_}
            (s.folder / "empty").touch()
            os.replace(s.folder / "empty", log)
            assert {s.ask(model=model).status for model in ("b", "large")} == {200}
            assert len(s.log_rows()) == 2
    said = [str(one.message) for one in caught if issubclass(one.category, CascadeWarning)]
    lost, again = (
        f"calls are not logged: {log}: No space left on device",
        f"calls are logged again: {log}: 5 calls lost",
    )
    assert [text.removesuffix(" before") for text in said] == [lost, again] * 2


def drawn(service, query, questions):
    for text in questions:
        service.post({"model": "policy", "messages": [{"role": "user", "content": text}]}, x_rcjax_query=query)
    service.wait_until_idle()
    return [row["shadow"] for row in service.log_rows() if row["model"] == "small"]


def test_a_client_cannot_choose_its_share_of_shadow_queries():
    shares = []
    for _ in range(2):
        with gateway(behave=answers, shadow=0.5) as service:
            shares.append(drawn(service, "q1", [f"question {i}" for i in range(30)]))
            assert 0 < sum(shares[-1]) < 30
            assert len({*drawn(service, "q1", ["the same"] * 4)[30:]}) == 1
    assert shares[0] != shares[1]  # each service draws by a salt of its own: with a chance of 1e-9 they are the same
