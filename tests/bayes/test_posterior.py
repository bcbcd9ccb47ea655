"""Posterior draws: the density, both samplers, and what they do with few, perfect or missing answers."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from helpers.judged_logs import partly
from helpers.posterior_samples import keep, three, unlike
from helpers.stated_samples import stated_log
from scipy.interpolate import CubicSpline

import rcjax
from rcjax._core.batching import list_pairs
from rcjax.bayes import Posterior, Priors, sample_posterior
from rcjax.bayes.hierarchy import KNOTS, build_observations, hierarchical_model, interpolate_curves, starting_point
from rcjax.bayes.posterior import credible_bands
from rcjax.model.calibration import Calibrator
from rcjax.model.likelihood import SMOOTH, compute_ranks, log_likelihood
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import LossTerms

numpyro_util = pytest.importorskip("numpyro.infer.util")
pytestmark = pytest.mark.usefixtures("float64")

TOLERANCE = 4  # posterior standard deviations, of a few dozen figures


def sample(log, **options):
    return sample_posterior(log, method="laplace", draws=200, **options)


@pytest.fixture(scope="module")
def log(float64):
    return three(200)


@pytest.fixture(scope="module")
def drawn(log):
    return sample(log)


@pytest.fixture(scope="module")
def reference(log):
    return rcjax.fit(log)


@pytest.fixture(scope="module")
def evidence(log, reference):
    observations = jax.jit(build_observations)(reference, log.logprob, log.correct, log.answered, log.answered)
    return observations, starting_point(reference, observations)


def finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


@pytest.mark.thorough
def test_the_posterior_covers_the_truth(drawn):
    truth = rcjax.demo_model()
    coefficients = drawn.model.calibrators.coefficients
    assert (unlike(coefficients, truth.calibrators.coefficients[:3]) < TOLERANCE).all()
    # The confidences of neighbours have the true copula; their ranks are the same on any scale.
    taus = np.asarray(truth.copulas.tau())
    for place, pair in enumerate(list_pairs(3)):
        if pair[1] == pair[0] + 1:
            assert unlike(drawn.model.copulas.tau()[:, place], taus[list_pairs(5).index(pair)]) < TOLERANCE


def test_the_density_matches_the_written_model(log, reference, evidence):
    observations, start = evidence
    ours = jax.jit(lambda *args: numpyro_util.log_density(hierarchical_model, args[:1], {}, args[1])[0])(
        observations, start
    )
    s = {name: np.asarray(value) for name, value in start.items()}
    normal, logit = scipy.stats.norm.logpdf, scipy.special.logit
    priors = [
        normal(s["slope_pool"], 1, 1),
        normal(s["slope"], s["slope_pool"], 0.5),
        normal(s["intercept"], 0, 2.5),
        scipy.stats.beta.logpdf(s["share"], 2, 2),
        normal(s["lower"], 0, 1.5),
        scipy.stats.lognorm.logpdf(s["gap"], 0.5, scale=1.5),
        scipy.stats.lognorm.logpdf(s["concentration"], 1, scale=6),
        normal(s["dependence_pool"], logit(0.3 / 0.98), 1),
        normal(s["dependence"], s["dependence_pool"], 0.7),
    ]
    logits = s["intercept"][:, None] + s["slope"][:, None] * observations.z
    answers = np.where(log.correct.T, -np.logaddexp(0, -logits), -np.logaddexp(0, logits))
    mean = scipy.special.expit(np.stack([s["lower"], s["lower"] + s["gap"]], 1))
    a, b = mean * s["concentration"], (1 - mean) * s["concentration"]
    share = np.stack([1 - s["share"], s["share"]], 1)
    x = np.exp(observations.log_x[0])[..., None]
    density = (share[:, None] * scipy.stats.beta.pdf(x, a[:, None], b[:, None])).sum(-1)
    mixtures = np.log(density)[np.asarray(observations.mass) == SMOOTH]
    copulas = rcjax.copulas.Gumbel.from_tau(0.98 * scipy.special.expit(s["dependence"]))
    left, right = np.triu_indices(3, 1)
    confidence = reference.calibrate(log.logprob)
    placed = jax.jit(jax.vmap(compute_ranks, in_axes=(0, 1)))(reference.marginals, confidence)
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], placed) for i in (left, right))
    terms = jax.jit(jax.vmap(log_likelihood))(copulas, first, second)
    expected = sum(float(np.sum(term)) for term in (*priors, answers, mixtures, terms))
    assert float(ours) == pytest.approx(expected, abs=1e-2)  # what interpolating between knots costs


@pytest.mark.thorough
def test_the_masses_are_conjugate(drawn, evidence):
    observations, _ = evidence
    counts = np.stack([(np.asarray(observations.mass) == place).sum(1) for place in (0, SMOOTH, 1)], 1)
    expected = (counts + 0.5) / (counts.sum(1, keepdims=True) + 1.5)
    masses = np.asarray(drawn.sites["masses"])[0]
    assert (unlike(masses, expected) < TOLERANCE / np.sqrt(len(masses))).all()
    np.testing.assert_array_equal(drawn.model.marginals.mass_highest, masses[..., 2])


@pytest.mark.thorough
def test_estimates_of_few_queries_are_shrunk_and_uncertain():
    few, many = (sample(three(n, seed=3)) for n in (30, 200))
    slopes = {n: np.asarray(each.sites["slope"])[0] for n, each in ((30, few), (200, many))}
    assert (slopes[30].std(0) > 1.2 * slopes[200].std(0)).all()
    fitted, z = few.reference, np.asarray(few.sites["slope"])[0].mean(0)
    scale = z / np.asarray(few.model.calibrators.coefficients)[..., 1].mean(0)
    features = jax.vmap(Calibrator.xi)(fitted.calibrators, three(30, seed=3).logprob.T)
    np.testing.assert_allclose(scale, np.nanstd(features, axis=1), rtol=1e-5)  # slopes are of features of one spread
    likeliest = scale * np.asarray(fitted.calibrators.coefficients)[:, 1]
    assert np.ptp(z) < np.ptp(likeliest)
    taus = np.asarray(few.sites["tau"])[0].mean(0)
    assert np.ptp(taus) < np.ptp(fitted.copulas.tau())


def bent(name):
    """A log of 30 queries, with something out of the ordinary about the second model or the answers."""
    log = three(30, seed=2)
    if name == "always right":
        return dataclasses.replace(log, correct=log.correct.at[:, 1].set(True))
    if name == "one confidence":
        return dataclasses.replace(log, logprob=log.logprob.at[:, 1].set(-0.1))
    if name == "the first model again":
        return dataclasses.replace(log, logprob=log.logprob.at[:, 1].set(log.logprob[:, 0]))
    return keep(log, np.random.default_rng(0).uniform(size=(200, 3)) < 0.6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "always right",
        pytest.param("one confidence", marks=pytest.mark.thorough),
        "the first model again",
        "holes",
    ],
)
def test_odd_logs_leave_finite_draws(name):
    drawn = sample(bent(name))
    calibrators = drawn.model.calibrators
    assert finite((drawn.sites, drawn.model.marginals, drawn.model.copulas, calibrators.coefficients))
    if name in ("always right", "one confidence"):
        # Their φ̂ does not vary: an answer is worth the same whatever its confidence, and all lie in one mass.
        assert (np.asarray(calibrators.coefficients)[:, 1, 1] == 0).all()
        assert (np.asarray(drawn.model.marginals.mass_highest)[:, 1] == 1).all()
    if name == "always right":
        assert 0.9 < jax.nn.sigmoid(calibrators.coefficients[:, 1, 0]).mean() < 1
    if name == "the first model again":
        assert float(drawn.sites["tau"][..., 0].mean()) > 0.9


@pytest.mark.thorough
def test_values_of_missing_answers_do_not_change_the_posterior():
    log = bent("holes")
    other = dataclasses.replace(
        log, logprob=jnp.where(log.answered, log.logprob, -3.0), correct=~log.answered | log.correct
    )
    one, two = (sample(each) for each in (log, other))
    jax.tree.map(np.testing.assert_array_equal, one.sites, two.sites)


@pytest.mark.thorough
def test_the_seed_determines_the_posterior(log, drawn):
    repeated, other = (sample(log, seed=seed) for seed in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, repeated.sites, drawn.sites)
    assert not np.array_equal(other.sites["slope"], drawn.sites["slope"])


def test_curves_are_natural_splines_and_bands_quantiles_of_draws(monkeypatch):
    rng = np.random.default_rng(0)
    curves, at = rng.normal(size=(5, len(KNOTS))), rng.uniform(KNOTS[0], KNOTS[-1], 5)
    expected = [float(CubicSpline(KNOTS, curve, bc_type="natural")(x)) for curve, x in zip(curves, at, strict=True)]
    np.testing.assert_allclose(interpolate_curves(jnp.asarray(curves), jnp.asarray(at)), expected, rtol=1e-9)
    drawn = rng.normal(size=(3, 40, 2))
    monkeypatch.setattr("rcjax.bayes.posterior.posterior_figures", lambda *_, draws: LossTerms(*drawn[:, :draws]))
    posterior, frontier = (object.__new__(kind) for kind in (Posterior, Frontier))
    object.__setattr__(frontier, "abstention", drawn[2])
    bands = credible_bands(posterior, frontier, level=0.8, draws=30)
    for band, figures in zip((bands.error, bands.cost, bands.abstention), drawn, strict=True):
        np.testing.assert_allclose(band, np.quantile(figures[:30], (0.1, 0.9), axis=0).T, rtol=1e-9)
    assert (bands.level, bands.replicates) == (0.8, 30)


def test_invalid_arguments_are_refused(log):
    for wrong, message in (
        ({"method": "gibbs"}, "'nuts' or 'laplace'"),
        ({"draws": 0, "method": "laplace"}, "draws must be at least 1, not 0"),
        ({"draws": 2.5}, "draws must be a whole number, not a float"),
        ({"draws": 3}, "draws must be at least 4, not 3"),
        ({"chains": 0}, "chains must be at least 1, not 0"),
        ({"copula": "frnk"}, "unknown copula"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            sample_posterior(log, **wrong)


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["numpyro", "arviz"])
def test_a_missing_library_is_named_with_its_extra(log, drawn, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}: pip install .*\[posterior\]'"):
        sample_posterior(log) if module == "numpyro" else drawn.to_arviz()


@pytest.mark.thorough
def test_numpyro_is_imported_when_it_is_needed():
    code = "import sys, rcjax.bayes as b; b.sample_posterior; b.credible_bands; sys.exit('numpyro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.thorough
def test_arviz_names_models_and_pairs(drawn):
    pytest.importorskip("arviz")
    result = drawn.to_arviz()["posterior"]
    assert dict(result.sizes) == {"chain": 1, "draw": 200, "model": 3, "component": 2, "place": 3, "pair": 3}
    assert result["model"].values.tolist() == list(drawn.models)
    np.testing.assert_allclose(result["tau"].values[0], drawn.model.copulas.tau())
    np.testing.assert_allclose(result["masses"].sum("place"), 1.0)


@pytest.mark.thorough
def test_unlabelled_answers_do_not_change_the_accuracies(log):
    """With labels of the first half, accuracies are those of the first half; nobody is wrong for want of a label."""
    labelled = np.zeros(log.logprob.shape, bool)
    labelled[:100] = True
    few = sample(partly(log, labelled, np.full((*labelled.shape, 1), np.nan)))
    half, all_ = sample(log.take(slice(100))), sample(log)
    own, halved, full = (np.asarray(one.model.calibrators.coefficients) for one in (few, half, all_))
    centre = np.abs(own.mean(0) - halved.mean(0)) / halved.std(0)
    assert centre.max() < 1.0
    assert (own.std(0) > full.std(0)).all()


@pytest.mark.thorough
def test_a_model_that_is_always_right_has_one_confidence():
    log = stated_log("certain")
    correct = np.array(log.correct)
    correct[:, 0] = True
    drawn = sample(dataclasses.replace(log, correct=jnp.asarray(correct)))
    assert finite((drawn.sites, drawn.model.calibrators.coefficients))
    own = np.asarray(drawn.model.calibrators.stated.confidence)[:, 0, :2]
    np.testing.assert_allclose(own[:, 0], own[:, 1], rtol=1e-6)
    assert (own > 0.95).mean() > 0.9


@pytest.mark.thorough
def test_priors_dominate_where_data_are_few(compilations):
    log = three(2)
    sample(log)
    with compilations() as compiled:
        steep = Priors(slope_center=2.0, slope_scale=0.01, slope_spread=0.01, mass_count=50.0)
        sharp = sample(log, priors=steep)
        dependent = sample(log, priors=Priors(tau_center=0.8, dependence_scale=0.01, dependence_spread=0.01))
    assert not compiled
    np.testing.assert_allclose(sharp.sites["slope"], 2.0, atol=0.1)
    np.testing.assert_allclose(dependent.sites["tau"], 0.8, atol=0.02)
    # Dirichlet's mean: 50 at each of three places and two answers more, of a model with two confidences.
    counts = np.asarray(sharp.sites["masses"][0, :, 0]).mean(0) * 152
    assert (np.abs(counts - 50) < 4).all()


def test_invalid_priors_are_refused(log):
    for wrong, message in (
        ({"slope_spread": 0.0}, r"priors\.slope_spread: must be between 1e-100"),
        ({"slope_center": float("nan")}, r"priors\.slope_center: must be between"),
        ({"tau_center": 1.0}, r"priors\.tau_center: must be between -0.999 and 0.999"),
        ({"mean_scale": "2"}, r"priors\.mean_scale: must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            sample(log, priors=Priors(**wrong))
