"""What a service says of itself, with a key and without: at /v1/models, and on its page."""

import base64
import itertools
import shutil

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import MODELS, SURE, gateway, make_policy

from rcjax._base.codec import written
from rcjax.policy import Comparison, Ladder, Rival
from rcjax.policy.following import DAY, PeriodBill
from rcjax.policy.ladder import Period
from rcjax.serving.gateway.catalog import digest_of
from rcjax.serving.gateway.metrics import Ended
from rcjax.serving.gateway.page import _cost_check, _period

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
KEY = {"authorization": "Bearer key-of-a-client"}


@pytest.fixture
def _key(monkeypatch):
    monkeypatch.setenv("KEYS_OF_CLIENTS", "key-of-another, key-of-a-client")


@pytest.mark.usefixtures("_key")
def test_the_configuration_is_hidden_without_a_key():
    with gateway({"secret-name": make_policy()}, key_env="KEYS_OF_CLIENTS") as service:
        for path in ("/v1/models", "/v1/models/secret-name", "/metrics", "/"):
            assert service.get(path).status == 401
            assert service.get(path, authorization="Bearer key").status == 401
            assert service.get(path, **KEY).status == 200
        assert [service.get(path).status for path in ("/health", "/ready", "/none")] == [200, 200, 404]


def test_the_list_of_models_has_policies_first_and_each_alone():
    policy = make_policy(expected={"error": 0.1, "cost": 1e-4})
    with gateway({"support": policy}) as service:
        entries = service.get("/v1/models").json["data"]
        assert [entry["id"] for entry in entries] == ["support", *MODELS]
        assert {entry["object"] for entry in entries} == {"model"}
        told = entries[0]["rcjax"]
        assert (told["models"], told["expected"]) == (list(MODELS), {"error": 0.1, "cost": 1e-4})
        assert service.get("/v1/models/support").json == entries[0]
        assert service.get("/v1/models/large").json == entries[-1]
        assert service.get("/v1/models/huge").json["error"]["code"] == "model_not_found"


@pytest.mark.usefixtures("_key")
def test_the_page_shows_money_ladder_and_models_and_no_prompt():
    """A browser sends the key as a password, and runs nothing."""
    ladder = Ladder((make_policy(expected={"error": 0.1, "cost": 1e-4}),), 0.0, budget=2e-4)
    behave = Response(sure("A", SURE))
    with gateway({"<b>": ladder}, lambda *_: behave, key_env="KEYS_OF_CLIENTS") as service:
        empty = service.get("/", **KEY).body.decode()
        for model in ("<b>", "<b>", "large"):
            body = {"model": model, "messages": [{"role": "user", "content": "a secret"}]}
            assert service.post(body, **KEY).status == 200
        recent = service.app.state.gateway.metrics.recent
        recent.extend(one._replace(digest="before", cost=9.0) for one in (recent[0], recent[1]))
        assert service.get("/").headers["www-authenticate"] == 'Basic realm="rcjax"'
        reply = service.get("/", authorization=f"Basic {base64.b64encode(b'me:key-of-a-client').decode()}")
        page = reply.body.decode()
    assert (reply.status, reply.headers["content-security-policy"].split(";")[0]) == (200, "default-src 'none'")
    assert "nothing asked yet" in empty
    paid = "<strong>$10.4 per million queries</strong> paid · budget $200 per million queries"
    balance = " · in hand $0.000379, to even out over the next 400 queries"
    since = f"policy {digest_of(ladder)} · 2 requests since "
    rung = "<td>0</td><td>small → middle → large</td><td>$100</td><td>10.0 %</td>"
    answered = "<td>small</td><td>2</td><td>100.0 %</td>"
    for part in (
        "<h2>&lt;b&gt;</h2>",
        since,
        paid + balance,
        rung,
        answered,
        "Passed on, by the name of a model",
        "<polyline",
    ):
        assert part in page, part
    assert not [part for part in ("<script", "key-of-a-client", "a secret", "<b>") if part in page]


def test_the_page_says_which_month_it_is_and_what_its_rest_means():
    """Of $300 for November 2026, with $100 spent before."""
    first = 1_793_491_200.0  # 1 November 2026

    def told(days, spent, every="month", stops=False):
        bill = PeriodBill.of(Period(300.0, every), 1e-4, first + DAY * days)
        return _period(bill.spend(spent, first + DAY * days), first + DAY * days, stops=stops)

    assert (
        told(10, 100.0)
        == "November 2026 (UTC): <strong>$200 of $300 left</strong>, for 20.0 of 30 days, at an even pace."
    )
    assert "for 3.0 of 30 days: 10 times an even pace. What a month has not spent is for the rest" in told(27, 0.0)
    assert told(10, 270.0).endswith("0.15 times an even pace. Queries go by cheaper rungs until the month ends.")
    assert told(10, 301.0).endswith("All is spent: the cheapest rung answers until the month ends.")
    assert told(10, 301.0, stops=True).endswith("All is spent: requests are refused until the month ends.")
    assert told(10.5, 1.0, "week").startswith("The week from 9 November 2026 on (UTC): ")
    assert told(10.5, 1.0, "day").startswith(
        "11 November 2026 (UTC): <strong>$299 of $300 left</strong>, for 12.0 of 24 h"
    )


def test_a_difference_within_chance_is_shown_without_a_claim():
    ended = [Ended("p", "d", 0.0, "m", "answered", cost, 1.0) for cost in (0.0, 2.2) * 15]
    assert (
        "cost 10.0 % more than their rungs did when they were tuned, which chance explains (± 33.0 points)"
        in _cost_check(ended)
    )


def test_the_page_says_what_the_policy_was_to_change_beside_todays():
    comparison = Comparison(0.123, 5e-5, 300, False, (Rival("large", "today", 0.12, 2e-4, 0.003, 0.006),))
    told = {"comparison": written(comparison), "tuning": {"queries": {"number": 1e8, "every": "month"}}}
    with gateway({"support": make_policy(provenance=told)}) as service:
        page = service.get("/").body.decode()
    said = "As it was tuned, it saves $150 of $200 per million queries (75 %), at 0.3 ± 0.6 points more error"
    assert said in page


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")
@pytest.mark.usefixtures("_key")
def test_the_page_in_a_browser():
    """On a phone and on a screen, light and dark: all is there, nothing scrolls sideways, axe is content."""
    playwright = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    ladder = Ladder((make_policy(expected={"error": 0.1, "cost": 9e-6}),), 0.0, budget=2e-4)
    behave = Response(sure("A", SURE))
    with gateway({"a-policy-of-a-long-name " * 4: ladder}, lambda *_: behave, key_env="KEYS_OF_CLIENTS") as service:
        for _ in range(25):
            body = {"model": "a-policy-of-a-long-name " * 4, "messages": [{"role": "user", "content": "a secret"}]}
            assert service.post(body, **KEY).status == 200
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            for width, scheme in itertools.product((390, 1280), ("light", "dark")):
                troubles, key = [], {"username": "me", "password": "key-of-a-client"}
                tab = browser.new_page(
                    viewport={"width": width, "height": 844}, color_scheme=scheme, http_credentials=key
                )
                tab.on("console", lambda message: troubles.append(message.text))  # noqa: B023
                tab.goto(service.url)
                text = tab.inner_text("body")
                said = "25 judged requests cost 15.6 % more than their rungs did when they were tuned, more than chance"
                for part in (said, "paid", "budget", "small → middle → large", "Who answers", "Failures: none"):
                    assert part in text
                assert tab.locator("svg polyline").count() == 1
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert [(one["id"], one["nodes"][0]["html"][:90]) for one in axe.run(tab).response["violations"]] == []
                assert [one for one in troubles if "401" not in one] == []
                tab.close()
            browser.close()
