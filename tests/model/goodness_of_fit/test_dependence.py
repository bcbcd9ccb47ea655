"""Tests of dependence: the copulas of pairs, their comparison, and the Markov property."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from statsmodels.discrete.discrete_model import Logit
from statsmodels.tools.tools import add_constant

import rcjax
from benchmarks.paper.statistics import MIN_QUERIES, logistic_test, paper_statistic, rank_correlations
from rcjax._core.batching import list_pairs
from rcjax._core.numerics import kendall_tau
from rcjax.copulas import Clayton, Copula, Gumbel
from rcjax.model.calibration import fit_calibrator
from rcjax.model.goodness_of_fit import compare_copulas
from rcjax.model.goodness_of_fit.bootstrap import p_value
from rcjax.model.goodness_of_fit.dependence import Ties, conditional_test, copula_test, empirical_copula, fitted_process

pytestmark = pytest.mark.usefixtures("float64")

#: Those of test_diagnosis too, so that either finds the other's programmes compiled.
N, REPLICATES = 200, 50


def test_the_empirical_copula_is_a_plain_count():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 12, (2, 60))
    present = rng.random(60) < 0.8
    found = np.asarray(empirical_copula(*map(jnp.asarray, (x, y, present))))
    for i in range(60):
        below = [x[j] <= x[i] and y[j] <= y[i] for j in range(60) if present[j]]
        assert found[i] == pytest.approx(np.mean(below))


drawn = jax.jit(Copula.sample, static_argnums=2)


@pytest.fixture(scope="module")
def measure(float64):
    """(copula, S_n) of Gumbel's family on N observations, those `present`."""
    fitted = jax.jit(lambda x, y, present: fitted_process(Gumbel, x, y, present, kendall_tau(x, y, present)))
    return lambda x, y, present=None: fitted(x, y, jnp.ones(N, bool) if present is None else present)


@pytest.fixture(scope="module")
def sample(float64):
    return [np.asarray(each) for each in drawn(Gumbel(2.0), jax.random.key(1), (N,))]


def plain_copula(u, v):
    return ((u[:, None] <= u) & (v[:, None] <= v)).mean(0)


@pytest.mark.thorough
@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_the_process_is_a_plain_sum(measure, sample, tied):
    x, y = (np.where(each < 0.2, 0.1, np.where(each > 0.9, 0.95, each)) if tied else each for each in sample)
    copula, process = measure(x, y)
    u, v = ((each <= each[:, None]).sum(1) / (N + 1) for each in (x, y))
    assert process == pytest.approx(((plain_copula(x, y) - np.asarray(copula.cdf(u, v))) ** 2).sum(), rel=1e-9)


@pytest.mark.thorough
def test_absent_observations_do_not_matter(measure, sample):
    few = 150
    present = jnp.arange(N) < few
    one, other = (
        jax.tree.leaves(measure(*(np.where(present, each, junk) for each in sample), present)) for junk in (np.nan, 0.4)
    )
    np.testing.assert_array_equal(one, other)
    shuffled = np.random.default_rng(0).permutation(N)
    moved = jax.tree.leaves(measure(*(each[shuffled] for each in sample), present[shuffled]))
    np.testing.assert_allclose(one, moved, rtol=1e-9)
    x, y = (each[:few] for each in sample)
    process = (
        (plain_copula(x, y) - Gumbel(one[0]).cdf(*((z.argsort().argsort() + 1) / (few + 1) for z in (x, y)))) ** 2
    ).sum()
    assert one[1] == pytest.approx(float(process), rel=1e-9)


@pytest.mark.thorough
def test_replicates_tie_where_the_log_does():
    rng = np.random.default_rng(3)
    values = np.concatenate([np.full(12, 0.1), np.full(7, 0.5), np.full(20, 0.9), rng.uniform(0.1, 0.9, 61)])
    values = rng.permutation(np.concatenate([values, np.full(30, np.nan)]))
    present = jnp.asarray(~np.isnan(values))
    ties = Ties.find(jnp.asarray(values), present)
    kept = np.sort(values[present])
    even = (np.arange(100) + 0.5) / 100
    imposed = np.asarray(ties.impose(jnp.asarray(even)))
    assert np.unique(imposed, return_counts=True)[1].tolist() == np.unique(kept, return_counts=True)[1].tolist()
    upper = np.searchsorted(kept, kept, side="right") / 100
    np.testing.assert_allclose(imposed, np.where(np.isin(kept, [0.1, 0.5, 0.9]), upper, even))
    draws = np.asarray(ties.impose(jnp.asarray(rng.uniform(size=4000))))
    for mass, top in ((0.12, 0.12), (0.07, upper[kept == 0.5][0]), (0.2, 1.0)):
        assert abs((draws == top).mean() - mass) < 4 * np.sqrt(mass * (1 - mass) / 4000)
    assert len(np.unique(draws)) == 3 + sum(~np.isin(draws, [0.12, upper[kept == 0.5][0], 1.0]))


def test_p_values_leave_out_what_is_not_finite():
    replicates = jnp.array([0.1, 0.2, jnp.nan, 0.4, jnp.inf])
    assert p_value(jnp.asarray(0.15), replicates) == pytest.approx(2.5 / 4)
    assert p_value(jnp.asarray(9.0), replicates) == pytest.approx(0.5 / 4)
    assert p_value(jnp.asarray(0.1), jnp.full(3, 0.1)) == pytest.approx(3.5 / 4)
    assert np.isnan(p_value(jnp.asarray(jnp.nan), replicates))


@pytest.fixture(scope="module")
def logs(sample):
    """(3, N) pairs: Gumbel's, one with ties at both ends, and Clayton's with the same τ."""
    tied = [np.where(each < 0.15, 0.0, np.where(each > 0.8, 1.0, each)) for each in sample]
    other = Clayton(2.0).sample(jax.random.key(4), (N,))
    return [jnp.stack([jnp.asarray(z[i]) for z in (sample, tied, other)]) for i in range(2)]


@pytest.fixture(scope="module")
def found(logs):
    return copula_test(Gumbel, *logs, jnp.ones((3, N), bool), jax.random.key(0), REPLICATES)


@pytest.mark.thorough
def test_the_true_family_is_accepted_and_another_rejected(found):
    assert (found.process_p[:2] > 0.05).all()
    assert found.process_p[2] == 0.5 / (REPLICATES + 1)
    np.testing.assert_allclose(found.copula.theta[:2], 2.0, rtol=0.2)
    np.testing.assert_allclose(found.distance, np.sqrt(found.process / N))
    assert (found.n == N).all()


def test_the_papers_statistic_is_a_plain_sum(sample):
    x, y = sample
    u, v = ((each.argsort().argsort() + 1) / (N + 1) for each in (x, y))
    gaps = plain_copula(x, y) - np.asarray(Gumbel(2.0).cdf(u, v))
    assert paper_statistic(Gumbel(2.0), x, y, jax.random.key(0)) == pytest.approx(np.sqrt(N) * (gaps**2).mean())
    # Ties are broken at random: a constant is as good as independent.
    constant = np.full(N, 0.5)
    near, far = (paper_statistic(Gumbel(theta), constant, y, jax.random.key(0)) for theta in (1.0, 2.0))
    assert near < 0.01 < far


@pytest.mark.parametrize(
    ("benchmark", "task"), [("mmlu", "choice"), pytest.param("triviaqa", "generation", marks=pytest.mark.thorough)]
)
def test_published_statistics(shared_data, shared_reference, benchmark, task):
    published = json.loads((shared_reference / "published_tables.json").read_text())["copula_sqrt_n_cvm_mean"]

    @jax.jit
    def statistic(x, y, key):
        return paper_statistic(Gumbel.from_tau(kendall_tau(x, y, jnp.ones(x.shape, bool))), x, y, key)

    for models, figure in published[benchmark].items():
        path = shared_data / f"{benchmark}_{models}_test.csv"
        log = rcjax.read_log(path, prices=shared_data / "prices.toml", task=task)
        columns = log.logprob.T
        figures = [statistic(columns[i], columns[j], jax.random.key(i)) for i, j in list_pairs(len(log.models))]
        assert np.mean(figures) == pytest.approx(figure, abs=0.004)


@pytest.fixture(scope="module")
def drawn_pairs(float64):
    u, v = Clayton(2.0).sample(jax.random.key(0), (300,))
    return np.asarray(u), np.asarray(v)


def test_results_match_another_optimiser_and_are_sorted_by_aic(drawn_pairs):
    best, other, none = compare_copulas(*drawn_pairs, ["gumbel", "clayton", "independence"])
    assert [one.family for one in (best, other, none)] == ["Clayton", "Gumbel", "Independence"]
    u, v = (scipy.stats.rankdata(x) / 301 for x in drawn_pairs)

    def loss(theta):
        density = (1 + theta) * (u * v) ** (-1 - theta) * (u**-theta + v**-theta - 1) ** (-2 - 1 / theta)
        return -np.log(density).sum()

    found = scipy.optimize.minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-9})
    np.testing.assert_allclose(best.parameters["theta"], found.x, rtol=1e-5)
    np.testing.assert_allclose([best.aic, best.bic], [2 + 2 * found.fun, np.log(300) + 2 * found.fun], rtol=1e-8)
    h = 1e-3
    curvature = (loss(found.x + h) - 2 * found.fun + loss(found.x - h)) / h**2
    np.testing.assert_allclose(best.standard_errors["theta"], curvature**-0.5, rtol=1e-3)
    np.testing.assert_allclose(best.tau, found.x / (found.x + 2), rtol=1e-5)
    np.testing.assert_allclose(best.tail_dependence, [2 ** (-1 / found.x), 0], rtol=1e-5)
    assert (none.parameters, none.aic, none.status, best.p_value) == ({}, 0.0, "converged", None)


def test_only_ranks_matter(drawn_pairs):
    x, y = drawn_pairs
    (one,), (same,) = (compare_copulas(*columns, "frank") for columns in ((x, y), (np.exp(x), -1 / y)))
    assert (one.log_likelihood, one.parameters) == (same.log_likelihood, same.parameters)


@pytest.mark.thorough
def test_the_test_of_fit_rejects_the_wrong_family(drawn_pairs):
    right, wrong = compare_copulas(*drawn_pairs, ["clayton", "gumbel"], replicates=200)
    assert right.p_value > 0.05 > wrong.p_value


@pytest.mark.parametrize(
    ("x", "y", "families", "message"),
    [
        (np.zeros(9), np.zeros(9), "auto", "x and y have shapes"),
        (np.arange(20.0), np.arange(19.0), "auto", "both must be"),
        (np.r_[np.nan, np.arange(19.0)], np.arange(20.0), "auto", r"x\[0\] is nan; it must be finite"),
        (np.arange(20.0), np.arange(20.0), "nope", "unknown copula 'nope'"),
        (np.arange(20.0), np.arange(20.0), [], "families is empty"),
        (np.arange(20.0), np.ones(20), "gumbel", "y is 1 throughout: a constant has no dependence"),
    ],
)
def test_bad_input_gets_one_line(x, y, families, message):
    with pytest.raises(ValueError, match=message):
        compare_copulas(x, y, families)


N, CHAINS, REPLICATES = 205, 100, 99  # a last stratum of five


@pytest.fixture(scope="module")
def answers(float64):
    """(confidence, correct, answered) of four models, (300, 4) each; the last one answers few queries."""
    rng = np.random.default_rng(0)
    confidence = scipy.stats.norm.cdf(np.cumsum(rng.normal(size=(300, 4)), axis=1) / np.sqrt(np.arange(1, 5)))
    confidence[:, 1] = confidence[:, 1].round(1)
    answered = rng.random((300, 4)) < [0.9, 1.0, 0.95, 0.3]
    correct = (rng.random((300, 4)) < confidence) & answered
    return np.where(answered, confidence, np.nan), correct, answered


def test_rank_correlations_match_scipy(answers):
    confidence, correct, answered = answers
    found = np.asarray(rank_correlations(*map(jnp.asarray, answers)))
    assert found.shape == (3, 4, 4)
    unknown = 0
    for i in range(4):
        assert (found[:, i, i] == 1).all()
        for j in set(range(4)) - {i}:
            both = answered[:, i] & answered[:, j]
            right, wrong = correct[:, i] & correct[:, j], ~correct[:, i] & ~correct[:, j]
            for ours, rows in zip(found[:, i, j], (both, both & right, both & wrong), strict=True):
                if rows.sum() < MIN_QUERIES:
                    unknown += 1
                    assert np.isnan(ours)
                else:
                    tau = scipy.stats.kendalltau(confidence[rows, i], confidence[rows, j]).statistic
                    assert ours == pytest.approx(tau, abs=1e-12)
    assert 0 < unknown < 18


def test_the_papers_test_is_walds_test_of_a_logistic_regression(answers):
    confidence, correct, answered = answers
    found = np.asarray(logistic_test(*map(jnp.asarray, answers)))
    expected = np.full((4, 4), np.nan)
    for j in (2, 3):
        of_middle = []
        for i in range(j - 1):
            rows = answered[:, [i, j - 1, j]].all(1)
            design = add_constant(confidence[rows][:, [i, j - 1]])
            p = Logit(correct[rows, j].astype(float), design).fit(disp=0, tol=1e-12).pvalues
            expected[j, i] = np.log10(p[1])
            of_middle.append(p[2])
        expected[j, j - 1] = np.log10(np.mean(of_middle))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("benchmark", "task"), [("mmlu", "choice"), ("triviaqa", "generation")])
def test_published_p_values(shared_data, shared_reference, benchmark, task):
    published = json.loads((shared_reference / "published_tables.json").read_text())["markov_log10_p"]
    names = [f"llama{size}" for size in ("3.2-1b", "3.2-3b", "3.1-8b", "3.1-70b", "3.1-405b")]
    options = {"prices": shared_data / "prices.toml", "task": task, "models": names}
    train, test = (
        rcjax.read_log(shared_data / f"{benchmark}_llama_{part}.csv", **options) for part in ("train", "test")
    )

    def calibrate(logprob, correct, answered, fresh):
        return fit_calibrator(logprob, correct, answered, task)(fresh)

    columns = train.logprob, train.correct, train.answered, test.logprob
    confidence = jax.jit(jax.vmap(calibrate, 1, 1))(*columns)
    found = np.asarray(logistic_test(confidence, test.correct, test.answered))
    for size, row in published[benchmark].items():
        j = names.index(f"llama3.1-{size}")
        np.testing.assert_allclose(found[j, : len(row)], row, atol=0.02)


@pytest.fixture(scope="module")
def chains(float64):
    """(3, CHAINS, N) Gaussian chains a → b → c."""
    steps = np.random.default_rng(2).normal(size=(3, CHAINS, N))
    return np.cumsum(steps, axis=0)


@pytest.fixture(scope="module")
def tests(float64):
    """The conditional test of CHAINS samples at once."""
    batch = jax.jit(lambda *each: jax.lax.map(lambda one: conditional_test(*one, replicates=REPLICATES), each))
    everyone, keys = np.ones((CHAINS, N), bool), jax.random.split(jax.random.key(0), CHAINS)
    return lambda a, b, c, present=everyone: jax.tree.map(np.asarray, batch(a, b, c, present, keys))


def plain_tau(a, b, c):
    """Kendall's τ-b over the pairs within tens of neighbours in b."""
    agree, untied_a, untied_c = 0, 0, 0
    order = np.argsort(b)
    for rows in np.split(order, range(10, len(order), 10)):
        signs = [np.sign(x[rows][:, None] - x[rows])[np.triu_indices(len(rows), 1)] for x in (a, c)]
        agree += signs[0] @ signs[1]
        untied_a += np.abs(signs[0]).sum()
        untied_c += np.abs(signs[1]).sum()
    return agree / np.sqrt(untied_a * untied_c)


@pytest.mark.thorough
def test_p_values_hold_along_a_chain_and_are_small_off_it(chains, tests):
    a, b, c = chains
    found = tests(a, b, c)
    assert scipy.stats.kstest(found.p_value, "uniform").pvalue > 0.01
    assert abs(found.tau.mean()) < 0.03
    direct = tests(a, b, c + a)
    assert np.mean(direct.p_value <= 0.05) > 0.9
    assert direct.tau.min() > 0.1


def test_the_conditional_tau_is_a_plain_count(chains, tests):
    a, b, c = chains[0].round(), chains[1], chains[2].round()
    found = tests(a, b, c)
    np.testing.assert_allclose(found.tau, [plain_tau(*each) for each in zip(a, b, c, strict=True)], atol=1e-12)
    assert (found.n == N).all()


@pytest.mark.thorough
def test_absent_queries_do_not_matter(chains, tests):
    present = np.random.default_rng(3).random((CHAINS, N)) < 0.7
    a, b, c = (np.where(present, x, np.nan) for x in chains)
    found = tests(a, b, c, present)
    kept = [plain_tau(*(x[rows] for x in each)) for *each, rows in zip(a, b, c, present, strict=True)]
    np.testing.assert_allclose(found.tau, kept, atol=1e-12)
    np.testing.assert_array_equal(found.n, present.sum(1))
    other = tests(*(np.where(present, x, 7.0) for x in chains), present)
    np.testing.assert_array_equal(found.p_value, other.p_value)
    assert scipy.stats.kstest(found.p_value, "uniform").pvalue > 0.01


def test_a_constant_confidence_has_tau_0_and_the_largest_p_value(chains, tests):
    found = tests(np.ones((CHAINS, N)), chains[1], chains[2])
    assert (found.tau == 0).all()
    assert (found.p_value == (REPLICATES + 0.5) / (REPLICATES + 1)).all()
