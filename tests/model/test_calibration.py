"""Transforms, logistic regression against statsmodels and Firth, calibration error against the paper."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings, strategies as st
from statsmodels.discrete.discrete_model import Logit
from statsmodels.tools.tools import add_constant
from tiers import examples

import rcjax
from rcjax.model import calibration
from rcjax.model.calibration import (
    Calibrator,
    expected_calibration_error,
    fit_calibrator,
    invert_transform,
    transform_confidence,
)

pytestmark = pytest.mark.usefixtures("float64")

LOG_2 = np.log(2)
NAMES = ("choice", "generation", "none")
TASKS = {"mmlu": "choice", "triviaqa": "generation"}
fit_batch = jax.jit(jax.vmap(fit_calibrator, in_axes=(0, 0, 0, None)), static_argnums=3)
apply_batch = jax.jit(jax.vmap(Calibrator.__call__))


def sample(n, seed, slope=1.2, intercept=-0.5):
    rng = np.random.default_rng(seed)
    feature = rng.exponential(1.5, n)
    correct = rng.uniform(size=n) < 1 / (1 + np.exp(-intercept - slope * feature))
    return invert_transform(jnp.asarray(feature), "choice"), correct


def test_transforms_are_exact_near_certainty():
    logprob = jnp.array([-1e-300, -1e-30, -1e-12, -LOG_2, -1.0, -800.0])
    p = np.exp(np.asarray(logprob))
    choice = -np.log(-np.expm1(np.asarray(logprob)))
    np.testing.assert_allclose(transform_confidence(logprob, "choice")[:-1], choice[:-1], rtol=1e-14)
    assert float(transform_confidence(logprob, "choice")[0]) == pytest.approx(690.7755278982137, rel=1e-15)
    generation = np.where(p >= 0.5, choice - LOG_2, np.asarray(logprob) + LOG_2)
    ours = np.asarray(transform_confidence(logprob, "generation"))
    np.testing.assert_allclose(ours, generation, rtol=1e-14, atol=1e-15)
    assert ours[-1] == pytest.approx(-800 + LOG_2, rel=1e-15)
    np.testing.assert_array_equal(transform_confidence(logprob, "none"), logprob)


def test_transforms_at_certainty_and_beyond():
    ends = jnp.array([0.0, -jnp.inf])
    assert transform_confidence(ends, "choice").tolist() == [np.inf, 0.0]
    assert transform_confidence(ends, "generation").tolist() == [np.inf, -np.inf]
    assert transform_confidence(ends, "none").tolist() == [0.0, -np.inf]
    assert np.isnan(transform_confidence(jnp.array(0.1), "choice"))
    with pytest.raises(ValueError, match="'log'"):
        transform_confidence(ends, "log")


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.floats(-700, -1e-290), min_size=8, max_size=8))
def test_transforms_are_monotone_and_invert(values):
    logprob = jnp.sort(jnp.asarray(values))
    for name in NAMES:
        transformed = transform_confidence(logprob, name)
        assert np.all(np.diff(transformed) >= 0)
        back = invert_transform(transformed, name)
        # choice loses p below eps: 1 − p rounds; there only p itself comes back.
        np.testing.assert_allclose(np.exp(back), np.exp(logprob), rtol=1e-13, atol=1e-15)
    back = invert_transform(transform_confidence(logprob, "generation"), "generation")
    np.testing.assert_allclose(back, logprob, rtol=1e-12)


def test_fit_matches_statsmodels():
    n, seeds = 250, range(6)
    logprob, correct = (np.stack(part) for part in zip(*(sample(n, seed) for seed in seeds), strict=True))
    answered = np.random.default_rng(9).uniform(size=logprob.shape) < 0.9
    fitted = fit_batch(np.where(answered, logprob, np.nan), correct, answered, "choice")
    assert fitted.status.tolist() == [calibration.CalibrationStatus.CONVERGED] * 6
    for j in seeds:
        feature = np.asarray(transform_confidence(logprob[j], "choice"))[answered[j]]
        reference = Logit(correct[j][answered[j]], add_constant(feature)).fit(disp=0, tol=1e-12)
        np.testing.assert_allclose(fitted.coefficients[j], reference.params, rtol=1e-6)
        np.testing.assert_allclose(fitted.slope_p[j], reference.llr_pvalue, rtol=1e-5, atol=1e-12)
        assert float(fitted.smallest[j]) == feature.min()
        assert float(fitted.largest[j]) == feature.max()


def test_certain_or_hopeless_answers_have_a_slope():
    """Confidences of nearly 0 or 1 that separate right from wrong: Wald's test gave p = 1."""
    sure = np.arange(300) < 260
    correct = np.where(sure, np.arange(300) != 0, np.arange(300) == 299)
    logprob = np.where(sure, -1e-12, -60.0) - 1e-3 * (np.arange(300) == 100)
    fitted = fit_batch(jnp.asarray(logprob)[None], correct[None], np.ones((1, 300), bool), "generation")
    assert fitted.slope_p[0] < 1e-12
    ends = jnp.where(sure, 0.0, -jnp.inf)
    assert fit_batch(ends[None], correct[None], np.ones((1, 300), bool), "generation").slope_p[0] < 1e-12


def firth(feature, correct):
    design = np.stack([np.ones_like(feature), feature], axis=1)

    def loss(beta):
        score = design @ beta
        fitted = 1 / (1 + np.exp(-score))
        information = design.T @ (design * (fitted * (1 - fitted))[:, None])
        likelihood = (correct * score - np.logaddexp(0, score)).sum()
        return -likelihood - 0.5 * np.linalg.slogdet(information)[1]

    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000}
    return scipy.optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options=options).x


@pytest.mark.thorough
def test_separable_data_get_firths_estimate():
    feature = np.array([[0.1, 0.4, 0.7, 1.0, 1.5, 2.2], [0.1, 0.4, 0.7, 1.0, 1.5, 2.2], [0.2, 0.5, 0.5, 0.5, 0.9, 1.4]])
    correct = np.array([[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 0, 1, 1]], bool)  # the last: a tie
    fitted = fit_batch(invert_transform(feature, "choice"), correct, np.ones((3, 6), bool), "choice")
    assert fitted.status.tolist() == [calibration.CalibrationStatus.SEPARABLE] * 3
    for j in range(3):
        np.testing.assert_allclose(fitted.coefficients[j], firth(feature[j], correct[j]), atol=1e-5)
    assert np.all(np.isfinite(fitted.slope_p))


def test_constant_data_get_a_constant():
    n = 6
    logprob = np.tile(np.linspace(-2, -0.1, n), (5, 1))
    logprob[2] = -0.5  # ξ does not vary
    logprob[3] = 0.0  # nothing but certainty
    correct = np.array([[1] * n, [0] * n, [1, 0, 1, 1, 0, 1], [1, 1, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]], bool)
    answered = np.ones((5, n), bool)
    answered[4, 2:] = False  # n = 2
    logprob[4, :2] = -0.25
    fitted = fit_batch(logprob, correct, answered, "choice")
    assert fitted.status.tolist() == [calibration.CalibrationStatus.CONSTANT] * 5
    assert np.all(fitted.coefficients[:, 1] == 0)
    right, count = (correct & answered).sum(1), answered.sum(1)
    expected = (right + 0.5) / (count + 1)
    for where in (-3.0, -0.25, 0.0, -np.inf):
        np.testing.assert_allclose(apply_batch(fitted, jnp.full(5, where)), expected, rtol=1e-12)
    assert np.all(np.isfinite(fitted.smallest))
    assert np.all(np.isfinite(fitted.largest))


@pytest.mark.thorough
def test_infinities_take_the_training_extremes():
    logprob, correct = sample(200, 3)
    logprob = logprob.at[:20].set(0.0).at[20:25].set(-jnp.inf)
    one = jnp.ones((1, 200), bool)
    fitted = fit_batch(logprob[None], correct[None], one, "generation")
    features = np.asarray(transform_confidence(logprob, "generation"))
    finite = features[np.isfinite(features)]
    assert (float(fitted.smallest[0]), float(fitted.largest[0])) == (finite.min(), finite.max())
    bounded = Logit(correct, add_constant(np.clip(features, finite.min(), finite.max()))).fit(disp=0)
    np.testing.assert_allclose(fitted.coefficients[0], bounded.params, rtol=1e-6)
    at = jnp.array([[0.0, -jnp.inf]])
    scores = fitted.coefficients[0, 0] + fitted.coefficients[0, 1] * np.array([finite.max(), finite.min()])
    np.testing.assert_allclose(apply_batch(fitted, at)[0], 1 / (1 + np.exp(-scores)), rtol=1e-12)
    single = jax.tree.map(lambda leaf: leaf[0], fitted)
    inside = np.asarray(logprob[25:])
    np.testing.assert_allclose(single.inverse(single(inside)), inside, rtol=1e-9)


def test_fit_in_float32(float32):
    logprob, correct = sample(250, 1)
    fitted = fit_batch(logprob[None].astype(jnp.float32), correct[None], np.ones((1, 250), bool), "choice")
    feature = np.asarray(transform_confidence(logprob, "choice"), np.float64)
    reference = Logit(correct, add_constant(feature)).fit(disp=0)
    assert fitted.coefficients.dtype == jnp.float32
    np.testing.assert_allclose(fitted.coefficients[0], reference.params, atol=1e-3)
    np.testing.assert_allclose(fitted.slope_p[0], reference.llr_pvalue, atol=1e-4)
    assert fitted.status.tolist() == [calibration.CalibrationStatus.CONVERGED]


def plain_calibration_error(confidence, correct):
    edges = np.percentile(confidence, np.linspace(0, 100, 11))
    edges[-1] = np.inf
    inside = [(confidence >= a) & (confidence < b) for a, b in itertools.pairwise(edges)]
    return sum(abs(correct[m].mean() - confidence[m].mean()) * m.mean() for m in inside if m.any())


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 7, 10**6]))
def test_calibration_error_matches_a_plain_count(seed, levels):
    rng = np.random.default_rng(seed)
    confidence = rng.integers(0, levels, 57) / levels
    correct = rng.uniform(size=57) < confidence
    ours = expected_calibration_error(confidence, correct)
    assert ours == pytest.approx(plain_calibration_error(confidence, correct), abs=1e-13)


def padded(matrix, fill):
    """(9 models, 300 queries): every training log in one shape, compiled for once."""
    return np.pad(np.asarray(matrix.T), [(0, 0), (0, 300 - matrix.shape[0])], constant_values=fill)


@pytest.mark.thorough
@pytest.mark.parametrize("benchmark", TASKS)
def test_published_calibration_errors(shared_data, shared_reference, benchmark):
    published = json.loads((shared_reference / "published_tables.json").read_text())
    read = {"prices": shared_data / "prices.toml", "task": TASKS[benchmark]}
    for transform, column in ((TASKS[benchmark], "ece_percent"), ("none", "ece_percent_without_transform")):
        train, test = (
            [
                rcjax.read_log(shared_data / f"{benchmark}_{family}_{split}.csv", **read)
                for family in ("llama", "qwen_oai")
            ]
            for split in ("train", "test")
        )
        fitted = fit_batch(
            *(
                np.concatenate([padded(getattr(log, part), fill) for log in train])
                for part, fill in (("logprob", np.nan), ("correct", False), ("answered", False))
            ),
            transform,
        )
        tests = [log.select(other.models) for log, other in zip(test, train, strict=True)]
        logprob, correct = (
            np.concatenate([np.asarray(getattr(log, part)).T for log in tests]) for part in ("logprob", "correct")
        )
        confidence = np.asarray(apply_batch(fitted, logprob))
        errors = map(expected_calibration_error, confidence, correct)
        names = [name for log in train for name in log.models]
        gaps = {
            (j := published["models"].index(name)): abs(100 * float(error) - published[column][benchmark][j])
            for name, error in zip(names, errors, strict=True)
        }
        assert len(gaps) == 9
        assert max(gaps.values()) <= (0.3 if transform == "none" else 0.1), transform
