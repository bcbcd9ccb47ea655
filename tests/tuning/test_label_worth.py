"""What labels and judged queries are worth: the formula against draws, the purchase against all others."""

import numpy as np
import pytest
from judged_logs import MODELS, partly, some_labelled, verdicts

import rcjax
from rcjax.policy.policy import Policy
from rcjax.tuning.label_worth import LabelWorth, label_worth

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
def test_the_worth_is_the_number_of_labels_that_vary_as_much():
    whole = rcjax.sample_log(1000, seed=4).select(MODELS)
    right = np.asarray(whole.correct)
    policy = rcjax.solve_frontier(rcjax.fit(whole)).policy(error_cost=0.002)
    rng = np.random.default_rng(0)
    errors, alone, worth = [], [], []
    for _ in range(120):
        # Other queries each time: what is known of those at hand is not all that varies.
        rows = rng.integers(0, 1000, 500)
        log = whole.take(rows)
        labelled = some_labelled(log, 100, rng)
        log = partly(log, labelled, verdicts(right[rows], "fair", rng))
        errors.append(float(rcjax.replay(policy, log).error))
        alone.append(float(rcjax.replay(policy, whole.take(rows[labelled[:, 0]])).error))
        worth.append(label_worth(policy, log).equivalent)
    ratio = np.var(alone) / np.var(errors)
    assert np.median(worth) / 100 == pytest.approx(ratio, rel=0.4)
    assert ratio > 1.5


def test_a_judge_who_knows_makes_all_queries_labels_and_one_who_does_not_none():
    assert LabelWorth(100, 900, 0, 0.0).equivalent == pytest.approx(1000)
    assert LabelWorth(100, 900, 0, 1.0).equivalent == pytest.approx(100)


@pytest.mark.parametrize(("label", "judge"), [(1.0, 0.01), (0.2, 0.1), (30.0, 0.001), (150.0, 0.5)])
def test_the_best_purchase_is_the_best_of_all(label, judge):
    have, money = LabelWorth(200, 700, 100, 0.35), 100.0
    bought = have.best_purchase(money, label, judge)
    assert bought.labels * label + bought.judged * judge <= money + 1e-9
    best = 0.0
    for labels in range(int(money / label) + 1):
        judged = int((money - labels * label) / judge)
        n, queries = 200 + labels, max(1000 + judged, 200 + labels)
        best = max(best, 1 / (1 / queries + 0.35 * (1 / n - 1 / queries)))
    assert bought.equivalent == pytest.approx(best, rel=0.005)
    assert bought.equivalent > have.equivalent


@pytest.mark.thorough
def test_nothing_is_said_where_all_is_labelled():
    whole = rcjax.sample_log(100, seed=0)
    policy = rcjax.solve_frontier(rcjax.fit(whole)).policy(error_cost=0.002)
    assert isinstance(policy, Policy)
    assert label_worth(policy, whole) is None
    assert label_worth(policy, partly(whole, np.ones(whole.correct.shape, bool), np.zeros((100, 5, 1)))) is None


@pytest.mark.parametrize("money", [0.0, -1.0, float("nan"), float("inf")])
def test_sums_of_money_must_be_positive(money):
    with pytest.raises(ValueError, match="positive"):
        LabelWorth(10, 10, 0, 0.5).best_purchase(money, 1.0, 1.0)
