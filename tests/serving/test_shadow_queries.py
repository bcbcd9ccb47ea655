"""Shadow queries: a share or a number a week, what they cost, and on whose bill that is."""

import os
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from helpers.gateway_samples import make_call

from rcjax.policy import Calibration, Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.serving.billing import SharedBill
from rcjax.serving.call_log import CallLog, Charge
from rcjax.serving.shadow import ShadowCost, ShadowRate, ShadowShare, make_shadow_share, queries_per_day

_DAY = 86_400.0
PLAIN = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
LADDER = Ladder(
    tuple(
        Policy((name,), {name: PLAIN}, {name: [Rule(1, "answer")]}, {name: cost}, expected={"error": 0.1, "cost": cost})
        for name, cost in {"small": 0.02, "middle": 0.05, "large": 0.3}.items()
    ),
    1.2,
    budget=0.1,
)


@pytest.mark.parametrize("a_day", [40, 4_000, 10_000])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_rate_gives_its_number_of_shadow_queries_whatever_the_traffic(a_day, workers):
    """By day five times as many queries come as by night, and more from the second week on."""
    rng, drawn, nights = random.Random(0), 0, 0
    shares = [ShadowShare(ShadowRate(200, "week", workers)) for _ in range(workers)]
    time, total, asleep = 0.0, 0, 0
    while time < 21 * _DAY:
        night = time % _DAY < _DAY / 2
        time += rng.expovariate(a_day / _DAY * (1 / 3 if night else 5 / 3) * (1.0 if time < 7 * _DAY else 1.5))
        shadow = rng.random() < shares[rng.randrange(workers)].count_and_share(time)
        total, asleep = total + 1, asleep + night
        drawn, nights = drawn + shadow, nights + (shadow and night)
    wanted = min(600, total)
    assert 0.85 * wanted - 60 < drawn < 1.25 * wanted + 60
    if total > 5_000:  # a fair sample of day and night
        assert nights / drawn == pytest.approx(asleep / total, abs=0.06)


def test_a_rate_begins_with_the_traffic_of_the_log():
    share = ShadowShare(ShadowRate(200, "week", 2), per_day=4_000.0)
    assert share.count_and_share(1e9) == pytest.approx(200 / 28_000, rel=0.01)
    assert ShadowShare(0.05).count_and_share(1e9) == 0.05


def test_a_rate_starts_from_the_traffic_of_its_own_policy(tmp_path):
    path = tmp_path / "calls.jsonl"
    days = [("busy", query / 40) for query in range(4_000)] + [("quiet", query * 10.0) for query in range(11)]
    with CallLog(path) as log:
        for policy, day in days:
            time = datetime.fromtimestamp(1e9 + day * 86_400, UTC).isoformat()
            log.write(make_call(time=time, charge=Charge(policy)))
            log.write(make_call(time=time, charge=Charge(policy), not_judged="tools"))  # never a shadow query
        shares = {
            name: make_shadow_share(ShadowRate(200, "week"), log, name).count_and_share(1e9 + 100 * 86_400)
            for name in ("busy", "quiet", "new")
        }
    assert shares == {"busy": pytest.approx(200 / 280, rel=0.02), "quiet": 1.0, "new": 1.0}


def test_the_traffic_is_that_of_the_last_four_weeks_and_older_files_are_not_read(tmp_path):
    """A start would read all the months of a log, and count their traffic as that of now."""
    for name, days in {
        "calls.jsonl": [80 + query / 2 for query in range(40)],
        "calls.jsonl.1": [60 + query / 10 for query in range(100)] + [70 + query / 2 for query in range(20)],
        "calls.jsonl.2": [90 + query / 100 for query in range(900)],  # by its last change, all of it is older
    }.items():
        with CallLog(tmp_path / name) as log:
            for day in days:
                time = datetime.fromtimestamp(1e9 + day * _DAY, UTC).isoformat()
                log.write(make_call(time=time, charge=Charge("a")))
        changed = 1e9 + _DAY * (50 if name == "calls.jsonl.2" else max(days))
        os.utime(tmp_path / name, (changed, changed))
    assert queries_per_day(tmp_path / "calls.jsonl", policy="a") == pytest.approx(2.0)


@pytest.mark.parametrize("text", ["200/year", "/week", "0/week", "-3/day", "nan/day", "many"])
def test_an_invalid_rate_is_refused(text):
    with pytest.raises(ValueError, match="give a share such as 5%, or queries and a period, such as 200/week"):
        ShadowRate.parse(text)


def test_a_shadow_query_costs_the_calls_that_the_policy_would_not_make():
    cost = ShadowCost.estimate(LADDER, ("small", "middle", "large", "huge"))
    assert cost == (pytest.approx(0.02 + 0.05 + 0.3 - 0.1), pytest.approx(0.1), ("huge",))  # of 0.8 · 0.05 + 0.2 · 0.3
    assert cost.to_json(0.05)["share_of_bill"] == pytest.approx(0.05 * 2.7)
    assert cost.describe(0.05).endswith("13.5 % on top of what the policy costs, and what huge costs")
    bill = replace(LADDER.rungs[-1], cost={"large": 0.1}, expected={"cost": 0.1 * (1 - 4e-16)})
    assert ShadowCost.estimate(bill, ("large",)).query == 0  # no rounding error


def test_money_for_a_period_pays_shadow_calls_and_a_budget_per_query_does_not():
    call = type("Call", (), {"cost": 3.0, "seconds": 0.1})()
    per_query, monthly = LADDER, replace(LADDER, period=Period(500.0, "month"))
    for policy, on_it in ((per_query, False), (monthly, True)):
        billing = SharedBill(policy, "policy", None)
        before = billing.bill
        billing.pay_shadow([call])
        assert (billing.shadow_charge is not None, billing.bill != before) == (on_it, on_it)
    assert billing.money_left == pytest.approx(497.0)
    assert billing.bill.queries == pytest.approx(before.queries)  # it is no query that came
