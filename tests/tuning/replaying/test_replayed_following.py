"""A ladder that follows its bill on logged queries, by what `replay` tells of each and the code that serves."""

import dataclasses

import numpy as np
import pytest

import rcjax
from rcjax.policy.bills import Bill
from rcjax.solving.frontier.points import shares_at_bill
from rcjax.tuning.replaying.replay import LadderReplay, replay_stream

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def ladder_and_fresh(float64):
    train, fresh = rcjax.sample_log(384, seed=2).select(["llama3.2-3b", "llama3.1-70b"]).split(0.5, seed=0)
    return rcjax.tune(train, budget=1e-4, intervals=False).policy, fresh


def test_each_query_is_the_mean_of_two_rungs_at_the_position_of_its_turn(ladder_and_fresh):
    ladder, fresh = ladder_and_fresh
    fresh = fresh.take(slice(12))
    each = [[rcjax.replay(rung, fresh.take([query])) for query in range(12)] for rung in ladder.rungs]
    bill, rows = Bill.open(ladder.budget), []
    for query in range(12):
        position = bill.position(ladder.rung_costs, 0.0)
        low = min(int(position), len(ladder.rungs) - 2)
        share = position - low
        spent, wrong = (
            (1 - share) * float(getattr(each[low][query], name)) + share * float(getattr(each[low + 1][query], name))
            for name in ("spent", "error")
        )
        rows.append((position, wrong, spent))
        bill = bill.after_query(spent, (1 - share) * ladder.rung_costs[low] + share * ladder.rung_costs[low + 1], 0.0)
    stream = replay_stream(ladder, fresh)
    np.testing.assert_allclose(np.array([stream.position, stream.wrong, stream.spent]).T, rows, rtol=1e-9)
    figures = stream.to_json()
    assert [figures[name] for name in ("last", "low", "high")] == [
        rows[-1][0],
        *(f(stream.position) for f in (min, max)),
    ]
    assert figures["bill"] == pytest.approx(stream.spent.mean())
    assert figures["error"] == pytest.approx(stream.wrong.mean())


def test_dearer_queries_are_paid_for_in_errors(ladder_and_fresh):
    ladder, fresh = ladder_and_fresh
    rungs = LadderReplay.of(ladder, fresh.take(np.tile(np.arange(fresh.n_queries), 12)))
    n = rungs.wrong.shape[1]
    usual, dearer = (rungs.stream(Bill.open(ladder.budget), np.full(n, times)).to_json() for times in (1.0, 1.4))
    for figures in (usual, dearer):
        assert figures["bill"] == pytest.approx(ladder.budget, rel=0.03)
    assert dearer["error"] > usual["error"]
    assert dearer["position"] < usual["low"]


@pytest.mark.parametrize("bills", [(1.0, 1.1, 9.0), (1.2, 1.1, 9.0), (1.3, 1.2, 1.9)])
def test_a_stream_settles_at_the_position_of_a_comparison(bills):
    spent = np.tile(np.array(bills)[:, None], 6000)
    wrong = np.tile([[0.6], [0.1], [0.0]], 6000)
    stream = LadderReplay((1.0, 1.05, 9.0), wrong, np.zeros_like(wrong), spent).stream(Bill.open(2.0))
    shares = shares_at_bill(spent[:, 0], np.array([2.0]))[0]
    assert stream.wrong[3000:].mean() == pytest.approx(shares @ wrong[:, 0], abs=0.002)
    assert stream.spent[3000:].mean() == pytest.approx(shares @ spent[:, 0], rel=0.01)


def test_a_check_reports_a_change_of_costs_in_errors_and_drifts_only_if_the_budget_is_out_of_reach(ladder_and_fresh):
    ladder, fresh = ladder_and_fresh
    fresh = fresh.take(np.tile(np.arange(fresh.n_queries), 5))
    for times, drifted, words in (
        (1.0, False, " 1.1 % more than expected"),
        (1.5, False, " % more than expected"),
        (9.0, True, " % more than expected"),
    ):
        dear = dataclasses.replace(fresh, query_cost=fresh.query_cost * times).take(slice(None))
        found = rcjax.check_policy(ladder, dear, retuning=False)
        assert any(remark.startswith("following its bill") and remark.endswith(words) for remark in found.remarks), (
            times,
            found.remarks,
        )
        (cost,) = (check for check in found.findings if check.name == "budget")
        assert (cost.verdict == "bad") is drifted, times
        assert found.error.observed == found.followed["error"] == replay_stream(ladder, dear).to_json()["error"]
