"""The bootstrap: fixed policies against the textbook, tuned ones against fits of the draws, coverage, corner cases."""

import numpy as np
import pytest
import scipy.stats
from helpers.selection_references import CUTS, draws_of, fixed_frontier, make_log

import rcjax
from rcjax.tuning.bootstrapping import bootstrap, percentile_intervals, search_optimism

pytestmark = pytest.mark.usefixtures("float64")

N, B = 120, 40


def what_happens(frontier, log):
    """(wrong, asked second), each (L, n) bool, by comparing confidences with thresholds."""
    confidence, correct = np.asarray(frontier.model.calibrate(log.logprob)), np.asarray(log.correct)
    defers = confidence[:, 0] <= CUTS[:, None]
    return ~np.where(defers, correct[:, -1], correct[:, 0]), defers


def widened(own, beyond, n, level):
    """(L, 2) percentile intervals of the truth, wider as Student's t is, from replicates (B, L) of log less draw.

    They lie around what the replicates say of the bias.
    """
    drawn = beyond.mean(0) - beyond
    ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    ratio = scipy.stats.t.ppf((1 + level) / 2, n - 1) / scipy.stats.norm.ppf((1 + level) / 2)
    return (own + beyond.mean(0) + ends * ratio * np.sqrt(n / (n - 1))).T


@pytest.fixture(scope="module")
def two(float64):
    """(log, fixed frontier) of two models."""
    log = make_log(N, 2, seed=1)
    return log, fixed_frontier(log, rcjax.fit(log))


# -- fixed policies


@pytest.mark.thorough
@pytest.mark.parametrize(("level", "seed"), [(0.9, 0), (0.5, 3)])
def test_fixed_policies_have_the_textbook_bootstrap_of_a_mean(two, level, seed):
    log, frontier = two
    bands = bootstrap(frontier, log, replicates=B, level=level, refit=False, seed=seed)
    draws = draws_of(seed, N, B)
    wrong, defers = what_happens(frontier, log)
    query_cost = np.asarray(log.query_cost)
    cost = query_cost.mean(0)
    error_of = wrong.mean(1) - wrong[:, draws].mean(-1).T
    own = cost[0] + cost[1] * defers.mean(1)
    bill = query_cost[:, 0] + query_cost[:, 1] * defers
    cost_of = bill.mean(1) - bill[:, draws].mean(-1).T
    expected = widened(wrong.mean(1), error_of, N, level), widened(own, cost_of, N, level)
    np.testing.assert_allclose(bands.error, np.clip(expected[0], 0, 1), atol=1e-5)
    np.testing.assert_allclose(bands.cost, np.maximum(expected[1], 0), rtol=1e-4)
    assert (bands.level, bands.replicates) == (level, B)


def test_queries_that_lack_an_answer_do_not_count(two):
    """Their figures are those of the log without them, drawn as often as they were."""
    log = make_log(N, 2, seed=2, missing=0.2)
    frontier = fixed_frontier(log, rcjax.fit(log))
    rows = log.complete
    assert 0 < rows.sum() < N
    bands = bootstrap(frontier, log, replicates=B, refit=False)
    wrong, _ = what_happens(frontier, log)
    beyond = np.stack([wrong[:, rows].mean(1) - wrong[:, draw[rows[draw]]].mean(1) for draw in draws_of(0, N, B)])
    # The single model at the end is replayed on all its answers.
    expected = widened(np.asarray(rcjax.replay(frontier, log).error), beyond, rows.sum(), 0.9)
    np.testing.assert_allclose(bands.error, np.clip(expected, 0, 1), atol=5e-5)


@pytest.mark.thorough
def test_intervals_cover_the_truth_as_often_as_they_say(float64):
    """Of policies that were fixed before: 200 logs of 120 queries, judged by one of 40,000."""
    large = make_log(40_000, 2, seed=10**6)
    frontier = fixed_frontier(large, rcjax.fit(make_log(N, 2, seed=1)))
    wrong, defers = what_happens(frontier, large)
    cost = np.asarray(large.query_cost).mean(0)
    truth = wrong.mean(1), cost[0] + cost[1] * defers.mean(1)
    covered = np.zeros((2, len(CUTS)))
    for seed in range(200):
        bands = bootstrap(frontier, make_log(N, 2, seed=seed), replicates=80, refit=False)
        for row, (ends, value) in enumerate(zip((bands.error, bands.cost), truth, strict=True)):
            ends = np.asarray(ends)
            covered[row] += (ends[:, 0] <= value) & (value <= ends[:, 1])
    # 0.9 has a standard error of 0.021; eighty replicates cost a little.
    assert (covered / 200 >= 0.83).all()
    assert (covered / 200 <= 0.97).all()


def test_a_draw_without_a_complete_query_is_left_out(two):
    """Two queries of a hundred are complete, and every policy is wrong on both."""
    _, frontier = two
    rare = np.array([True, False]) | (np.arange(N) < 2)[:, None]
    log = make_log(N, 2, seed=9, answered=rare, correct=np.array([[False, False]]))
    has_complete = (draws_of(0, N, B) < 2).any(1)
    assert 2 < has_complete.sum() < B
    bands = bootstrap(frontier, log, replicates=B, refit=False)
    # Two wrong answers of two say that the error is not small, with Clopper and Pearson's limit.
    limit = scipy.stats.beta.ppf(0.05, 2, 1)
    np.testing.assert_allclose(bands.error, np.tile([limit, 1.0], (len(bands.error), 1)), rtol=1e-9)


def test_a_second_bootstrap_compiles_nothing(two, compilations):
    log, frontier = two
    bootstrap(frontier, log, replicates=B, refit=False)
    other = make_log(N, 2, seed=3)
    with compilations() as compiled:
        bootstrap(frontier, other, replicates=B, refit=False, seed=5)
    assert not compiled


# -- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 19}, "replicates is 19; take at least 20"),
        ({"level": 1.0}, "level is 1.0"),
        ({"level": float("nan")}, "level is nan"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(two, options, message):
    log, frontier = two
    with pytest.raises(ValueError, match=message):
        bootstrap(frontier, log, **options)


# -- from replicates to an interval


@pytest.mark.parametrize(("level", "tolerance"), [(0.5, 0.01), (0.9, 0.015), (0.99, 0.05)])
@pytest.mark.parametrize("n", [10, 30, 1000])
def test_of_normal_replicates_the_interval_is_students(n, level, tolerance):
    """Replicates are the quantiles of the bootstrap of means of n with standard errors 1 and 2."""
    normal = scipy.stats.norm.ppf((np.arange(20_001) + 0.5) / 20_001)
    spread = np.stack([normal, 3 + 2 * normal], axis=1) * np.sqrt((n - 1) / n)
    ends = percentile_intervals(spread, n, level)
    half = scipy.stats.t.ppf((1 + level) / 2, n - 1) * np.array([[1], [2]])
    np.testing.assert_allclose(ends - spread.mean(0)[:, None], half * np.array([-1, 1]), rtol=tolerance)


def test_intervals_are_skewed_as_the_figure_is():
    """A share near 0 may be larger than seen by more than it may be smaller."""
    share = 0.05 - np.random.default_rng(0).binomial(60, 0.05, (4000, 1)) / 60
    ((low, high),) = percentile_intervals(share, 60, 0.9)
    assert high > -low > 0


# -- luck


def _squared_off(sample, centre, weight):
    """(B,) weighted mean of (x − centre)², of centres (B,) and weights (B, n)."""
    off = (sample - centre[:, None]) ** 2
    return (weight * off).sum(1) / weight.sum(1)


@pytest.mark.parametrize("n", [40, 150])
def test_the_optimism_of_a_mean_is_twice_its_variance(n):
    """Of the centre that is nearest to a sample of variance 1, by squares: 1 − 1/n on it, 1 + 1/n in service."""
    random, luck = np.random.default_rng(n), []
    for _ in range(1500):
        sample = random.standard_normal(n)
        weight = random.multinomial(n, np.full(n, 1 / n), 40)
        weights = np.ones_like(weight), weight, weight == 0
        own, draws = np.full(40, sample.mean()), (weight * sample).sum(1) / n
        kept, tuned = (np.stack([_squared_off(sample, at, w) for w in weights], -1)[:, None] for at in (own, draws))
        luck.append(search_optimism(kept, tuned).item())
    error = np.std(luck) / np.sqrt(len(luck))
    assert np.mean(luck) == pytest.approx(2 / n, abs=4 * error + 3 / n**2)
    assert 4 * error < 0.3 / n  # or the test could not fail


def test_a_replicate_without_queries_out_of_its_bag_is_left_out_of_the_optimism():
    kept, tuned = np.random.default_rng(1).random((2, 30, 4, 3))
    kept[3, :, 2] = tuned[3, :, 2] = np.nan
    rest = np.arange(30) != 3
    np.testing.assert_allclose(search_optimism(kept, tuned), search_optimism(kept[rest], tuned[rest]))
