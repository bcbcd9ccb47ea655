"""A service whose policy has a reference: shadow queries go to it, and the loop closes without people."""

import json

import pytest
from helpers.chat_server import Response, sure
from helpers.command_line import run
from helpers.gateway_service import MODELS, SURE, UNSURE, gateway, gateway_process, make_policy

from rcjax.policy import Calibration, Rule

pytestmark = pytest.mark.usefixtures("own_settings")

IDENTITY = Calibration("none", intercept=2.0, slope=4.0, smallest=-9.0, largest=0.0)
PAIR = {
    "models": ("small", "middle"),
    "calibrations": dict.fromkeys(("small", "middle"), IDENTITY),
    "rules": {"small": (Rule(0.5, "ask", "middle"), Rule(1.0, "answer")), "middle": (Rule(1.0, "answer"),)},
    "cost": {"small": 1e-5, "middle": 5e-5},
}


def with_reference(model="large"):
    """A policy small → middle, tuned to give the answers of another model."""
    return make_policy(**PAIR, provenance={"same_as": {"model": model, "same": "answer"}})


def test_shadow_queries_go_to_the_reference_and_their_answers_are_labels():
    def behave(request, _):
        asked, number = request["model"].removeprefix("org/"), int(request["messages"][-1]["content"])
        return Response(sure("A" if asked == "large" or number % 2 else "B", SURE if number % 2 else UNSURE))

    with gateway(with_reference(), behave, shadow=1.0) as service:
        for number in range(8):
            service.ask(str(number))
        assert {row["model"] for row in service.logged(8 * len(MODELS))} == {*MODELS}
        with_pair = run("evaluate", _saved(service, with_reference()), service.folder / "calls.jsonl", "--json")
        document = json.loads(with_pair.stdout)
        assert document["error"] == 0.5, with_pair.stderr
        assert document["reference"]["reference"] == "large"


def _saved(service, policy):
    policy.save(service.folder / "again.json")
    return service.folder / "again.json"


def test_without_shadow_queries_the_reference_is_not_asked():
    with gateway(with_reference(), lambda *_: Response(sure("A", UNSURE))) as service:
        service.ask("1")
        assert {row["model"] for row in service.log_rows()} == {"small", "middle"}


@pytest.mark.thorough
def test_a_reference_without_a_table_is_reported_at_the_start():
    with gateway_process(with_reference("huge"), lambda *_: Response(sure("A", UNSURE)), "--shadow", "100%") as service:
        printed = (service.folder / "stderr").read_text()
        assert "models.toml has no table for huge, the reference of policy policy" in printed
