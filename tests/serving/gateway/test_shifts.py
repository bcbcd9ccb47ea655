"""Confidences by week, counted by the service: against scipy, and what the page and Prometheus are told."""

import random

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE, gateway, make_policy
from scipy.stats import ks_2samp

from rcjax.serving.gateway import metrics as metrics_module
from rcjax.serving.gateway.metrics import Shifts

WEEK = 7 * 86_400.0


@pytest.mark.parametrize("power", [1.0, 1.3, 2.0])
def test_the_shift_is_that_of_scipy_on_twentieths(power):
    draw, shifts = random.Random(0), Shifts()
    before, now = ([int(20 * draw.random() ** p) / 20 for _ in range(n)] for p, n in ((1.0, 3000), (power, 1000)))
    for number, value in enumerate(before):
        shifts.add("p", "small", value, (number % 3) * WEEK)
    for value in now:
        shifts.add("p", "small", value, 3 * WEEK)
    (found,) = shifts.of("p", 3 * WEEK)
    theirs = ks_2samp(now, before, method="asymp")
    assert found.distance == pytest.approx(theirs.statistic)
    assert found.p_value == pytest.approx(theirs.pvalue, rel=0.25, abs=1e-3)
    assert (found.now, found.before) == (1000, 3000)
    assert [*shifts.of("another", 3 * WEEK)] == []


def test_weeks_are_forgotten_after_eight_and_few_answers_tell_nothing():
    shifts = Shifts()
    for week in range(30):
        for _ in range(200 if week < 29 else 50):
            shifts.add("p", "small", 0.5, week * WEEK)
    assert [*shifts.of("p", 29 * WEEK)] == []
    (found,) = shifts.of("p", 28 * WEEK)
    assert (found.now, found.distance) == (200, 0.0)
    assert max(len(weeks) for weeks in shifts._counts.values()) <= 9


def test_the_page_and_prometheus_tell_of_it(monkeypatch):
    monkeypatch.setattr(metrics_module, "_SHIFTS_EVERY", 0.0)
    with gateway({"support": make_policy()}, lambda *_: Response(sure("A", SURE))) as service:
        told = service.app.state.gateway.metrics
        digest = service.app.state.gateway.catalog.policies["support"].digest
        assert "have moved by" not in service.get("/").body.decode()
        now = metrics_module.time.time()
        for number in range(300):
            told.shifts.add(f"support {digest}", "small", number / 300, now - WEEK)
            told.shifts.add(f"support {digest}", "small", (number / 300) ** 0.5, now)
        service.post({"model": "support", "messages": [{"role": "user", "content": "a secret"}]})
        page, figures = service.get("/").body.decode(), service.get("/metrics").body.decode()
    assert "have moved by: small 0.2" in page
    assert "(more than chance); 301 answers beside 300" in page
    assert 'rcjax_confidence_shift{model="small",policy="support"} 0.2' in figures
