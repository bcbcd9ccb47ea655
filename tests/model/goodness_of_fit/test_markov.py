"""The Markov property: rank correlations and the paper's test against SciPy and statsmodels, the conditional test."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from statsmodels.discrete.discrete_model import Logit
from statsmodels.tools.tools import add_constant

import rcjax
from benchmarks.paper.statistics import FEWEST, logistic_test, rank_correlations
from rcjax.model.calibration import fit_calibrator
from rcjax.model.goodness_of_fit.dependence import conditional_test

pytestmark = pytest.mark.usefixtures("float64")

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


def test_rank_correlations_are_scipys(answers):
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
                if rows.sum() < FEWEST:
                    unknown += 1
                    assert np.isnan(ours)
                else:
                    tau = scipy.stats.kendalltau(confidence[rows, i], confidence[rows, j]).statistic
                    assert ours == pytest.approx(tau, abs=1e-12)
    assert 0 < unknown < 18


def test_the_papers_test_is_walds_in_a_logistic_regression(answers):
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


def test_a_constant_confidence_tells_nothing(chains, tests):
    found = tests(np.ones((CHAINS, N)), chains[1], chains[2])
    assert (found.tau == 0).all()
    assert (found.p_value == (REPLICATES + 0.5) / (REPLICATES + 1)).all()
