"""From replicates to an interval: Student's t, skew, and the luck of a search against what theory says of it."""

import numpy as np
import pytest
import scipy.stats

from rcjax.tuning.bootstrapping import quantiles, search_luck


@pytest.mark.parametrize(("level", "tolerance"), [(0.5, 0.01), (0.9, 0.015), (0.99, 0.05)])
@pytest.mark.parametrize("n", [10, 30, 1000])
def test_of_normal_replicates_the_interval_is_students(n, level, tolerance):
    """Replicates are the quantiles of the bootstrap of means of n with standard errors 1 and 2."""
    normal = scipy.stats.norm.ppf((np.arange(20_001) + 0.5) / 20_001)
    spread = np.stack([normal, 3 + 2 * normal], axis=1) * np.sqrt((n - 1) / n)
    ends = quantiles(spread, n, level)
    half = scipy.stats.t.ppf((1 + level) / 2, n - 1) * np.array([[1], [2]])
    np.testing.assert_allclose(ends - spread.mean(0)[:, None], half * np.array([-1, 1]), rtol=tolerance)


def test_intervals_are_skewed_as_the_figure_is():
    """A share near 0 may be larger than seen by more than it may be smaller."""
    share = 0.05 - np.random.default_rng(0).binomial(60, 0.05, (4000, 1)) / 60
    ((low, high),) = quantiles(share, 60, 0.9)
    assert high > -low > 0


# -- luck


def _squared_off(sample, centre, weight):
    """(B,) weighted mean of (x − centre)², of centres (B,) and weights (B, n)."""
    off = (sample - centre[:, None]) ** 2
    return (weight * off).sum(1) / weight.sum(1)


@pytest.mark.parametrize("n", [40, 150])
def test_the_luck_of_a_mean_is_twice_its_variance(n):
    """Of the centre that is nearest to a sample of variance 1, by squares: 1 − 1/n on it, 1 + 1/n in service."""
    random, luck = np.random.default_rng(n), []
    for _ in range(1500):
        sample = random.standard_normal(n)
        weight = random.multinomial(n, np.full(n, 1 / n), 40)
        weights = np.ones_like(weight), weight, weight == 0
        own, draws = np.full(40, sample.mean()), (weight * sample).sum(1) / n
        kept, tuned = (np.stack([_squared_off(sample, at, w) for w in weights], -1)[:, None] for at in (own, draws))
        luck.append(search_luck(kept, tuned).item())
    error = np.std(luck) / np.sqrt(len(luck))
    assert np.mean(luck) == pytest.approx(2 / n, abs=4 * error + 3 / n**2)
    assert 4 * error < 0.3 / n  # or the test could not fail


def test_policies_that_no_draw_changes_have_no_luck():
    figures = np.random.default_rng(0).random((30, 4, 3))
    np.testing.assert_allclose(search_luck(figures, figures), 0.0, atol=1e-15)


def test_a_replicate_without_queries_out_of_its_bag_says_nothing_of_luck():
    kept, tuned = np.random.default_rng(1).random((2, 30, 4, 3))
    kept[3, :, 2] = tuned[3, :, 2] = np.nan
    rest = np.arange(30) != 3
    np.testing.assert_allclose(search_luck(kept, tuned), search_luck(kept[rest], tuned[rest]))
