"""Priors as an argument, and what queries say of a posterior one by one."""

import jax
import numpy as np
import pytest
import scipy
from posterior_samples import keep, three
from scipy import stats

import rcjax
from rcjax.bayes.hierarchy import gather
from rcjax.model.calibrated import pairs
from rcjax.model.pair_likelihood import SMOOTH, log_likelihood

pytest.importorskip("numpyro")
pytestmark = pytest.mark.usefixtures("float64")


def sample(log, **options):
    return rcjax.bayes.sample_posterior(log, method="laplace", draws=200, **options)


@pytest.fixture(scope="module")
def log(float64):
    """With holes: what nobody answered says nothing."""
    return keep(three(200), np.random.default_rng(0).uniform(size=(200, 3)) < 0.9)


@pytest.fixture(scope="module")
def drawn(log):
    return sample(log)


@pytest.mark.thorough
def test_priors_decide_where_the_log_says_little(compilations):
    log = three(2)
    sample(log)
    with compilations() as compiled:
        sharp = sample(
            log, priors=rcjax.bayes.Priors(slope_center=2.0, slope_scale=0.01, slope_spread=0.01, mass_count=50.0)
        )
        dependent = sample(
            log, priors=rcjax.bayes.Priors(tau_center=0.8, dependence_scale=0.01, dependence_spread=0.01)
        )
    assert not compiled
    np.testing.assert_allclose(sharp.sites["slope"], 2.0, atol=0.1)
    np.testing.assert_allclose(dependent.sites["tau"], 0.8, atol=0.02)
    # Dirichlet's mean: 50 at each of three places and two answers more, of a model with two confidences.
    counts = np.asarray(sharp.sites["masses"][0, :, 0]).mean(0) * 152
    assert (np.abs(counts - 50) < 4).all()


def test_priors_that_cannot_be_are_refused(log):
    for wrong, message in (
        ({"slope_spread": 0.0}, r"priors\.slope_spread: must be between 1e-100"),
        ({"slope_center": float("nan")}, r"priors\.slope_center: must be between"),
        ({"tau_center": 1.0}, r"priors\.tau_center: must be between -0.999 and 0.999"),
        ({"mean_scale": "2"}, r"priors\.mean_scale: must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            sample(log, priors=rcjax.bayes.Priors(**wrong))


@pytest.mark.thorough
def test_a_query_s_terms_are_those_that_are_written_down(log, drawn):
    """Bernoulli, betas and masses by SciPy; copulas by `log_likelihood`, which its own tests hold to references."""
    got = np.asarray(drawn.log_likelihood())
    assert got.shape == (1, 200, 200)
    reference, site = drawn.reference, {name: np.asarray(value)[0, 7] for name, value in drawn.sites.items()}
    known = jax.jit(gather)(reference, log.logprob, log.correct, log.answered, log.answered)
    z, side, answered = np.asarray(known.z), np.asarray(known.side), np.asarray(log.answered).T
    right = scipy.special.expit(site["intercept"][:, None] + site["slope"][:, None] * z)
    labels = np.log(np.where(np.asarray(log.correct).T, right, 1 - right))
    a, b = site["mean"] * site["concentration"], (1 - site["mean"]) * site["concentration"]
    share = np.stack([1 - site["share"], site["share"]], 1)
    x = np.exp(np.asarray(known.log_x[0]))[..., None]
    smooth = np.log((share[:, None] * stats.beta.pdf(x, a[:, None], b[:, None])).sum(-1))
    masses = np.log(np.take_along_axis(site["masses"], side + 1, 1))
    expected = np.where(answered, labels + masses + np.where(side == SMOOTH, smooth, 0.0), 0.0).sum(0)
    copulas = rcjax.copulas.Gumbel.from_tau(site["tau"])
    for p, (i, j) in enumerate(pairs(3)):
        first, second = (jax.tree.map(lambda leaf, m=m: leaf[m], known.placed) for m in (i, j))
        terms = log_likelihood(jax.tree.map(lambda leaf, p=p: leaf[p], copulas), first, second)
        expected += np.where(answered[i] & answered[j], terms, 0.0)
    np.testing.assert_allclose(got[0, 7], expected, rtol=1e-9)


def test_arviz_leaves_one_out(drawn):
    arviz = pytest.importorskip("arviz")
    group = drawn.to_arviz()["log_likelihood"]
    assert dict(group.sizes) == {"chain": 1, "draw": 200, "query": 200}
    out = arviz.loo(drawn.to_arviz(), pointwise=True)
    elpd = next(float(getattr(out, name)) for name in ("elpd_loo", "elpd") if hasattr(out, name))
    within = scipy.special.logsumexp(np.asarray(drawn.log_likelihood())[0], axis=0, b=1 / 200)
    assert within.sum() - 60 < elpd < within.sum()  # what is left out is told less well, by some effective parameters
    groups = drawn.to_arviz(log_likelihood=False).groups
    names = groups() if callable(groups) else groups  # ArviZ 1.0 has paths in a tree, those before it a list of names
    assert any(name.endswith("posterior") for name in names)
    assert not any(name.endswith("log_likelihood") for name in names)
