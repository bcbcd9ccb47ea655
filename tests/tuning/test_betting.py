"""P-values by betting: against the product written out, and honest by simulation."""

import numpy as np
import pytest
from judged_logs import judged_log

import rcjax
from rcjax.tuning.betting import betting_p_value, judged_losses

pytestmark = pytest.mark.usefixtures("float64")


def wealth(values, most, limit):
    """The largest fortune of the gambler, one bet after the other."""
    fortune, best, before = 1.0, 1.0, []
    for value, top in zip(values, most, strict=True):
        known = [0.5, *before]
        mean = sum(known) / len(known)
        # Deviations each from the mean of its own time, as the stake may use nothing later.
        squares = 0.25 + sum((x - np.mean(known[: i + 2])) ** 2 for i, x in enumerate(before))
        stake = (limit - mean) / (squares / len(known) + (limit - mean) ** 2)
        stake = min(max(stake, 0.0), 0.75 / (top - limit))
        fortune *= 1 + stake * (limit - value)
        best = max(best, fortune)
        before.append(value)
    return best


def test_the_p_value_is_one_over_the_largest_fortune():
    rng = np.random.default_rng(0)
    values, most = rng.random(60) * 0.5, np.full(60, 2.0)
    for limit in (0.2, 0.3, 0.5):
        assert float(betting_p_value(values, most, limit)) == pytest.approx(1 / wealth(values, most, limit), rel=1e-9)


def test_a_true_hypothesis_is_seldom_rejected_and_a_false_one_often():
    rng = np.random.default_rng(1)
    rejected = []
    for _ in range(400):
        right = rng.random(300) < 0.8
        said = np.where(rng.random(300) < 0.9, right, ~right)
        guess = np.where(said, 0.5, 0.4)  # as wrong as it may be
        labelled = rng.random(300) < 0.3
        loss = 1 - guess + labelled / 0.3 * (guess - right)
        rejected.append(betting_p_value(loss, np.full(300, 1 / 0.3), [0.2, 0.4]) <= 0.1)
    true, false = np.mean(rejected, 0)
    assert true <= 0.1 + 3 * np.sqrt(0.09 / 400)
    assert false > 0.8


def test_larger_limits_have_smaller_p_values():
    values = np.random.default_rng(2).random(200) ** 2
    p = betting_p_value(values, np.ones(200), np.linspace(0.05, 0.95, 19))
    assert (np.diff(p) <= 1e-12).all()
    assert p[0] == 1


@pytest.mark.thorough
def test_losses_are_those_of_the_labels_where_all_is_labelled():
    log = judged_log(300, 100)
    frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[100.0, 1000.0])
    fresh = judged_log(200, 200, seed=9)
    losses = judged_losses(frontier, fresh, log)
    whole = rcjax.sample_log(200, seed=9).select(log.models)
    assert losses.values.mean(1) == pytest.approx(np.asarray(rcjax.replay(frontier, whole).error), abs=1e-12)
    assert (losses.most == 1).all()


def test_what_is_behind_the_last_label_does_not_count():
    log, fresh = judged_log(300, 100), judged_log(200, 20, seed=9)
    frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[1000.0])
    losses = judged_losses(frontier, fresh, log)
    assert losses.values.shape[1] <= 200
    assert losses.values.shape[1] == len(losses.most)
    assert (losses.values <= losses.most + 1e-12).all()
