import jax
import numpy as np
import pytest
import scipy.stats

from rcjax._core.batching import list_pairs
from rcjax.model.cascade_model import demo_model, sample_log
from rcjax.model.fitting import fit

pytestmark = pytest.mark.usefixtures("float64")
N = 4000  # one size for all tests: each size compiles anew


@pytest.fixture(scope="module")
def model(float64):
    return demo_model()


@pytest.fixture(scope="module")
def log(float64):
    return sample_log(N, seed=3)


@pytest.fixture(scope="module")
def refitted(log):
    return fit(log)


def neighbours(model):
    place = {pair: p for p, pair in enumerate(list_pairs(len(model.models)))}
    return [place[j, j + 1] for j in range(len(model.models) - 1)]


def test_the_demo_holds_parameters_and_no_data(model):
    assert len(model.models) == 5
    assert "no row of the log" in model.provenance["note"]
    assert model.provenance["source"] == "mmlu_llama_train.csv"
    assert set(model.prices) == set(model.models)
    assert max(leaf.size for leaf in jax.tree.leaves(model)) <= 10


def test_the_demos_rounded_parameters_are_valid(model):
    marginals = model.marginals
    assert np.array_equal(marginals.proportion.sum(-1), np.ones(5))
    assert np.all(np.asarray(marginals.lowest) < marginals.highest)
    assert np.all(np.diff(model.cost) >= 0)
    assert np.all(np.asarray(model.copulas.theta) >= 1)
    # A certain answer gets the confidence where the upper point mass sits.
    np.testing.assert_allclose(model.calibrate(np.zeros(5)), marginals.highest, atol=2e-6)


@pytest.mark.thorough
def test_sampled_answers_are_right_as_often_as_their_confidence(log, model):
    confidence = np.asarray(model.calibrate(log.logprob))
    gap = np.asarray(log.correct).mean(0) - confidence.mean(0)
    standard_error = np.sqrt((confidence * (1 - confidence)).mean(0) / N)
    assert np.all(np.abs(gap) < 4 * standard_error)


@pytest.mark.thorough
def test_refitting_a_sample_recovers_the_model(refitted, model):
    # Neighbours only: the chain alone says how models further apart depend on each other.
    chosen = neighbours(model)
    theta, expected = (np.asarray(m.copulas.theta)[chosen] for m in (refitted, model))
    np.testing.assert_allclose(theta, expected, rtol=0.08)
    np.testing.assert_allclose(refitted.cost, model.cost, rtol=4 * 0.467 / np.sqrt(N))
    slope = refitted.calibrators.coefficients[:, 1]
    errors = slope / scipy.stats.norm.isf(refitted.calibrators.slope_p / 2)
    assert np.all(np.abs(slope - model.calibrators.coefficients[:, 1]) < 4 * errors)
    assert np.all(np.asarray(refitted.calibrators.status) == 0)


def test_the_seed_determines_the_log(log, compilations):
    same = sample_log(N, seed=3)
    with compilations() as compiled:
        other = sample_log(N, seed=4)
    assert log.digest == same.digest
    assert np.array_equal(log.query_cost, same.query_cost)
    assert log.digest != other.digest
    assert not compiled, "another seed compiled again"


@pytest.mark.parametrize(("n", "message"), [(1, "n must be at least 2, not 1"), (10.5, "n must be a whole number")])
def test_an_invalid_number_of_queries_is_refused(n, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sample_log(n)


@pytest.mark.thorough
def test_the_demo_works_in_float32(model):
    with jax.enable_x64(False):
        log = sample_log(N, seed=0)
        assert {log.logprob.dtype, log.query_cost.dtype, log.cost.dtype} == {np.dtype("float32")}
        assert np.all(np.isfinite(log.logprob))
        confidence = np.asarray(demo_model().calibrate(log.logprob), dtype=float)
        correct = np.asarray(log.correct)
    assert np.all(confidence >= np.asarray(model.marginals.lowest) - 1e-5)
    assert np.all(confidence <= np.asarray(model.marginals.highest) + 1e-5)
    assert np.all(np.abs(correct.mean(0) - confidence.mean(0)) < 4 * 0.5 / np.sqrt(N))
