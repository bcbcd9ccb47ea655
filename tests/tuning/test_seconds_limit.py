"""Limits on the seconds, and a price for them: what is chosen keeps to it, by counting; the correction; guarantees."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from timed_logs import timed_log, timed_table, waited

import rcjax
from rcjax.frontier.choosing import InfeasibleError
from rcjax.logs import LogError, read_log
from rcjax.policy.limits import SecondsLimit
from rcjax.tuning.bills import count_waiting
from rcjax.tuning.evidence import Beyond
from rcjax.tuning.label_weights import judging_of
from rcjax.tuning.seconds_limit import _sure_to_pass, admission
from rcjax.tuning.trials import judge_pairs

pytestmark = pytest.mark.usefixtures("float64")
SURE = {"intervals": False}


@pytest.fixture(scope="module")
def log(float64):
    return timed_log(300, seed=1)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.fixture(scope="module")
def free(log):
    return rcjax.tune(log, error_cost=1.0, **SURE)


# -- a limit


@pytest.mark.parametrize(
    "limit",
    [
        "p95=2.5",
        pytest.param("p50=0.5", marks=pytest.mark.thorough),
        pytest.param("p99=5", marks=pytest.mark.thorough),
        pytest.param(0.9, marks=pytest.mark.thorough),
    ],
)
def test_every_point_of_the_frontier_keeps_to_the_limit(log, limit):
    tuned = rcjax.tune(log, max_seconds=limit, **SURE)
    told = SecondsLimit.of(limit)
    for index in range(0, len(tuned.frontier.lam), max(1, len(tuned.frontier.lam) // 6)):
        waits = np.array(waited(tuned.frontier.point(index), log))
        if told.share is None:
            assert waits.mean() <= told.seconds
        else:
            assert (waits > told.seconds).mean() <= 1 - told.share + 1e-9


@pytest.mark.thorough
def test_the_target_decides_among_those_that_keep_to_it(log, model):
    tuned = rcjax.tune(log, max_seconds="p95=2.5", error_cost=1.0, **SURE)
    admitted = tuned.admitted
    pairs = judge_pairs(log, model, np.array([1.0]), judging_of(log, model.calibrators.transform))
    keeps = admitted.admits(pairs.policies, model)
    assert 0 < keeps.sum() < len(keeps)
    best = (pairs.penalty + 1.0 * pairs.cost)[keeps].min()
    own = rcjax.replay(tuned.policy, log)
    places = np.flatnonzero(keeps)[np.isclose((pairs.penalty + pairs.cost)[keeps], best)]
    costs = pairs.cost[places]
    assert np.isclose(float(own.spent), costs, rtol=1e-6).any()
    assert tuned.policy.provenance["tuning"]["max_seconds"] == "p95=2.5"
    assert any("2.5 seconds for 95 % of the queries" in note for note in tuned.notes)


@pytest.mark.thorough
def test_a_limit_that_binds_nowhere_changes_nothing(log, free):
    tuned = rcjax.tune(log, max_seconds="p95=100", error_cost=1.0, **SURE)
    assert tuned.policy.rules == free.policy.rules
    assert tuned.admitted.luck == 0.0
    np.testing.assert_array_equal(tuned.frontier.error, free.frontier.error)


def test_the_figure_of_a_candidate_is_a_count(log, model):
    admitted = admission(log, model, SecondsLimit.of("p95=2.5"))
    frontier = rcjax.solve_frontier(model, lam=[30.0, 300.0, 3000.0])
    shares = admitted.figure(frontier.policies.on_host(), model)
    for index, share in enumerate(shares):
        assert share == pytest.approx((np.array(waited(frontier.point(index), log)) > 2.5).mean())


@pytest.mark.thorough
def test_luck_is_found_where_the_limit_binds():
    lucks = [
        admission(own, rcjax.fit(own), SecondsLimit.of("p95=2.5")).luck for own in map(timed_log, [60] * 4, range(4))
    ]
    assert max(lucks) > 0
    assert min(lucks) >= 0


def test_what_is_out_of_reach_is_said_with_the_best_figure(log):
    with pytest.raises(InfeasibleError) as caught:
        rcjax.tune(log, max_seconds="p95=0.2", max_error=0.3, **SURE)
    message = str(caught.value)
    assert message.startswith(
        "no policy takes at most 0.2 seconds for 95 % of the queries; the fastest, small alone, takes"
    )
    assert caught.value.tuned.frontier.seconds is not None
    seconds = float(message.split("takes at most ")[2].split()[0])
    fastest = np.quantile(np.asarray(log.seconds)[:, 0], 0.95, method="inverted_cdf")
    assert fastest <= seconds <= 1.15 * fastest  # above it by the luck of those that would just keep to it
    rcjax.tune(log, max_seconds=f"p95={seconds}", **SURE)  # the figure that it names will do


def test_a_target_out_of_reach_within_the_limit_tells_both(log):
    with pytest.raises(
        InfeasibleError, match=r"the best errs on .* \(among the policies that take at most 1 second on"
    ):
        rcjax.tune(log, max_seconds=1.0, max_error=0.01, **SURE)


@pytest.mark.parametrize(
    "cascade",
    [
        "all",
        pytest.param("adaptive", marks=pytest.mark.thorough),
        pytest.param(["small", "large"], marks=pytest.mark.thorough),
    ],
)
def test_searches_by_the_model_keep_to_it_too(log, cascade):
    tuned = rcjax.tune(log, cascade=cascade, max_seconds="p95=3", **SURE)
    for index in (0, len(tuned.frontier.lam) - 1):
        assert (np.array(waited(tuned.frontier.point(index), log)) > 3).mean() <= 0.05


@pytest.mark.thorough
def test_models_that_may_refuse_keep_to_it(log):
    tuned = rcjax.tune(log, max_seconds="p95=2.5", abstain_price=0.3, error_cost=0.01, **SURE)
    assert (np.array(waited(tuned.policy, log)) > 2.5).mean() <= 0.05


def test_a_limit_needs_seconds(log):
    bare = dataclasses.replace(log, seconds=None)
    with pytest.raises(LogError, match=r"no column seconds .* a limit on the seconds needs it"):
        rcjax.tune(bare, max_seconds=2.0, **SURE)


def test_options_that_do_not_go_together(log):
    with pytest.raises(ValueError, match="of a mean cannot be guaranteed"):
        rcjax.tune(log, max_seconds=2.0, max_error=0.3, confidence=0.9)
    with pytest.raises(ValueError, match="mix takes no max_seconds"):
        rcjax.tune(log, max_seconds="p95=2", max_error=0.3, mix=True)
    with pytest.raises(ValueError, match=r"give 2 \(on average\), or p50=…"):
        rcjax.tune(log, max_seconds="p90=2")


# -- a guarantee


def test_the_count_is_tested_by_the_binomial_tail():
    for count in (0, 3, 9, 15):
        beyond = Beyond(SecondsLimit.of("p95=4"), count, 300)
        assert beyond.p_value == pytest.approx(stats.binom.cdf(count, 300, 0.05))
        assert beyond.bound(0.1) == pytest.approx(stats.beta.ppf(0.9, count + 1, 300 - count), abs=1e-9)


@pytest.mark.parametrize(("n", "share", "level"), [(300, 0.05, 0.1), (59, 0.05, 0.05), (1000, 0.01, 0.05)])
def test_policies_on_trial_are_likely_to_pass(n, share, level):
    rate = _sure_to_pass(n, share, level)
    most = max(count for count in range(n) if stats.binom.cdf(count, n, share) <= level)
    assert stats.binom.cdf(most, n, rate) == pytest.approx(0.9, abs=1e-6)
    assert _sure_to_pass(50, 0.05, 0.05) < 0  # 59 queries are the least


@pytest.mark.thorough
def test_a_guarantee_counts_what_it_promises(log):
    held_out = timed_log(400, seed=2)
    options = {"max_error": 0.45, "confidence": 0.9, "held_out": held_out} | SURE
    tuned = rcjax.tune(log, max_seconds="p95=3", **options)
    seconds = tuned.certificate.seconds
    waits = np.array(waited(tuned.policy, held_out))
    assert (seconds.count, seconds.n) == (int((waits > 3).sum()), 400)
    assert tuned.certificate.p_value >= seconds.p_value
    assert tuned.certificate.p_value <= 0.1
    guarantee = tuned.policy.provenance["guarantee"]
    assert (guarantee["max_seconds"], guarantee["beyond"]) == ("p95=3", seconds.count)
    assert guarantee["beyond_bound"] <= 0.05
    assert "beyond" not in rcjax.tune(log, **options).policy.provenance["guarantee"]


def test_a_policy_that_waits_too_long_on_held_out_queries_is_not_guaranteed(log, free):
    slow = timed_log(400, seed=2, slower=3.0)
    with pytest.raises(
        InfeasibleError, match=r"and to take at most 3 seconds .* and let \d+ of them wait longer, .* wait longer$"
    ):
        rcjax.certify(free.frontier, slow, max_error=0.4, max_seconds="p95=3", confidence=0.9)
    with pytest.raises(ValueError, match="of a mean cannot be guaranteed"):
        rcjax.certify(free.frontier, slow, max_error=0.4, max_seconds=3.0)
    with pytest.raises(LogError, match="no column seconds"):
        rcjax.certify(free.frontier, dataclasses.replace(slow, seconds=None), max_error=0.4, max_seconds="p95=3")


@pytest.mark.thorough
def test_too_few_held_out_queries_are_said(log):
    with pytest.raises(InfeasibleError, match="so few queries cannot show it of any"):
        rcjax.tune(log, max_seconds="p99=50", max_error=0.4, confidence=0.95, **SURE)  # 150 held out; 299 are needed


# -- a price


def test_a_price_is_a_column_of_money(log):
    """`second_cost` does what adding the two up by hand does."""
    table = timed_table(300, seed=1)
    by_hand = read_log(table.with_columns(cost=table["cost"] + 0.0005 * table["seconds"]).drop("seconds"))
    ours = rcjax.tune(log, second_cost=0.0005, error_cost=0.05, **SURE)
    theirs = rcjax.tune(by_hand, error_cost=0.05, **SURE)
    assert ours.frontier.models == by_hand.models
    assert ours.policy.rules == theirs.policy.rules
    np.testing.assert_allclose(ours.frontier.cost, theirs.frontier.cost, rtol=1e-9)
    money = ours.policy.expected["money"]
    replayed = rcjax.replay(theirs.policy, log)
    assert money == pytest.approx(float(replayed.spent), rel=1e-6)
    own = ours.policy.expected
    assert own["cost"] == pytest.approx(money + 0.0005 * rcjax.replay(theirs.policy, log).seconds.mean, rel=0.05)


@pytest.mark.thorough
def test_a_dear_second_makes_quick_policies(log):
    plain, dear = (rcjax.tune(log, second_cost=price, error_cost=0.01, **SURE).policy.expected for price in (0, 0.01))
    assert dear["seconds"] < 0.7 * plain["seconds"]


def test_models_are_asked_in_the_order_of_what_they_cost_with_waiting():
    table = timed_table(60)
    slow_first = read_log(table.with_columns(seconds=5.0 - table["seconds"].clip(0, 4)))
    counted = count_waiting(slow_first, {"second_cost": 1.0})
    assert list(np.argsort(np.asarray(counted.cost))) == [0, 1, 2]
    chosen = slow_first.select(["large", "small", "middle"])
    assert count_waiting(chosen, {"second_cost": 1.0}).models == chosen.models


@pytest.mark.thorough
def test_retuning_counts_and_keeps_the_same(log):
    fresh = timed_log(300, seed=7)
    policy = rcjax.tune(log, second_cost=0.0005, max_seconds="p95=3", error_cost=0.05, **SURE).policy
    again = rcjax.retune(policy, fresh)
    assert again.policy.provenance["waiting"]["second_cost"] == 0.0005
    assert again.policy.provenance["tuning"]["max_seconds"] == "p95=3"
    assert (np.array(waited(again.policy, fresh)) > 3).mean() <= 0.05
    assert any("3 seconds for 95 %" in remark for remark in again.remarks)


@pytest.mark.thorough
def test_a_frontier_file_keeps_the_seconds(log, tmp_path):
    frontier = rcjax.tune(log, second_cost=0.0005, **SURE).frontier
    frontier.save(tmp_path / "f.json")
    read = rcjax.load_frontier(tmp_path / "f.json")
    for name in ("figures", "intervals", "known", "unknown", "money"):
        np.testing.assert_allclose(getattr(read.seconds, name), getattr(frontier.seconds, name), rtol=1e-12)
    assert read.point(3).expected == frontier.point(3).expected
    assert read.point(3).cost == frontier.point(3).cost
