"""Bets: against a gambler who stakes one loss after the other, honest where all can be counted, and powerful."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rcjax.tuning.certify import refutes_mean, upper_limit


def ruins(losses, most, limit, level):
    """Whether the gambler's fortune ever reaches 1/level: plain Python, one loss after the other."""
    fortune, seen = 1.0, []
    before, supposed = 4 / limit, limit * (np.mean(most) - limit)
    for t, (loss, top) in enumerate(zip(losses, most, strict=True)):
        variance = (before * supposed + sum(seen)) / (before + t)
        missing, left = math.log(1 / (level * fortune)), len(losses) - t
        stake = min(math.sqrt(2 * missing / (left * variance)), 0.9 / (top - limit))
        fortune *= 1 + stake * (limit - loss)
        if fortune >= 1 / level:
            return True
        seen.append((loss - limit) ** 2)
    return False


@pytest.mark.parametrize("seed", range(6))
def test_the_test_is_that_of_a_loop_over_the_bets(seed):
    rng = np.random.default_rng(seed)
    most = rng.choice([1.0, 1.5, 4.0], 80) if seed % 2 else np.ones(80)
    losses = np.where(rng.random(80) < 0.1, most, rng.beta(1, 9, 80) - 0.1 * (seed % 2))
    limits = np.array([0.05, 0.1, 0.125, 0.2, 0.25, 0.4, 0.5])
    for level in (0.2, 0.05):
        expected = [ruins(losses, most, limit, level) for limit in limits]
        assert refutes_mean(losses, limits, level, most).tolist() == expected
        assert {True, False} == {*expected}
        both = refutes_mean(np.stack([losses, losses[::-1]]), 0.25, level, most.max())  # policies at once
        assert both.tolist() == [ruins(of, np.full(80, most.max()), 0.25, level) for of in (losses, losses[::-1])]


@pytest.mark.parametrize("odds", [(0.9, 0.1), (0.7, 0.3), (0.5, 0.5), (0.2, 0.8), (0.8, 0.15, 0.05), (0.2, 0.5, 0.3)])
def test_among_all_outcomes_of_a_few_losses_wrong_refutations_keep_to_the_level(odds):
    """Exactly: by the probability of all sequences of losses that refute their own expectation."""
    values, n = np.array([0.0, 1.0] if len(odds) == 2 else [0.0, 0.4, 1.0]), 12 if len(odds) == 2 else 8
    paths = np.array([*itertools.product(range(len(values)), repeat=n)])
    losses, chance = values[paths], np.array(odds)[paths].prod(1)
    for level in (0.05, 0.2, 0.5):
        assert chance[refutes_mean(losses, odds @ values, level)].sum() <= level + 1e-12


def judged(rng, repeats, n, error, share=0.3, accuracy=0.9):
    """Losses by judges that labels correct, of this expectation."""
    right = rng.random((repeats, n)) >= error
    guess = np.where(np.where(rng.random((repeats, n)) < accuracy, right, ~right), 0.9, 0.4)  # as wrong as it may be
    labelled = rng.random((repeats, n)) < share
    return 1 - guess + labelled / share * (guess - right), 1 / share


LAWS = {
    "errors": lambda rng, mean, shape: (rng.random(shape) < mean).astype(float),
    "scores": lambda rng, mean, shape: rng.beta(2 * mean, 2 - 2 * mean, shape),
    "scores close together": lambda rng, mean, shape: rng.beta(20 * mean, 20 - 20 * mean, shape),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*LAWS, "judged"])
@pytest.mark.parametrize("n", [50, 300])
def test_false_promises_are_as_rare_as_stated(name, n):
    rng, repeats = np.random.default_rng(n), 20_000
    for mean, level in itertools.product((0.03, 0.2, 0.5), (0.1, 0.05)):
        losses, most = judged(rng, repeats, n, mean) if name == "judged" else (LAWS[name](rng, mean, (repeats, n)), 1.0)
        share = refutes_mean(losses, mean, level, most).mean()
        assert share <= level + 3 * np.sqrt(level * (1 - level) / repeats), (mean, level)


@pytest.mark.parametrize(
    ("n", "limit", "error"), [(100, 0.1, 0.04), (300, 0.05, 0.02), (300, 0.2, 0.13), (1000, 0.1, 0.075)]
)
def test_for_errors_the_test_has_nearly_the_power_of_the_binomial_tail(n, limit, error):
    losses = LAWS["errors"](np.random.default_rng(n), error, (2_000, n))
    counted = stats.binom.cdf(losses.sum(1), n, limit) <= 0.05
    assert counted.mean() - 0.08 <= refutes_mean(losses, limit, 0.05).mean() <= counted.mean() + 0.03


@pytest.mark.parametrize("errors", [0, 3, 20, 60])
def test_the_limit_is_the_largest_that_is_not_refuted(errors):
    losses = np.random.default_rng(1).permutation(np.arange(60) < errors).astype(float)
    limit, fine = upper_limit(losses, 0.1), np.linspace(0.001, 1, 1000)
    kept = fine[~refutes_mean(losses, fine, 0.1)]
    assert limit == pytest.approx(kept.max() if len(kept) else 0.0, abs=2e-3)
    if errors < 20:
        assert refutes_mean(losses, np.linspace(limit + 1e-5, 0.999, 50), 0.1).all()
        assert upper_limit(losses, 0.1, top=limit / 2) == limit / 2
    assert limit == pytest.approx(1.0 if errors == 60 else stats.beta.ppf(0.9, errors + 1, 60 - errors), abs=0.03)


def test_no_losses_refute_no_limit():
    assert not refutes_mean(np.zeros(0), 0.5, 0.05)
    assert refutes_mean(np.zeros((3, 0)), 0.5, 0.05).tolist() == [False] * 3
    assert not refutes_mean(np.zeros(100), 0.0, 0.05)
    assert upper_limit(np.zeros(0), 0.05) == 1.0
