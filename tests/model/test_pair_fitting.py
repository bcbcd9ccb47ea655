"""A copula fitted to pairs: against SciPy and `rcjax.fit`, by weights, in batches, its slopes, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import statsmodels.distributions.copula.api as references
from scipy import stats

import rcjax
from rcjax.model.fitting import pair_taus_compiled

pytestmark = pytest.mark.usefixtures("float64")

N = 120


@pytest.fixture(scope="module")
def sample(float64):
    return np.asarray(rcjax.copulas.Frank(4.0).sample(jax.random.key(0), (N,)))


@pytest.mark.thorough
def test_both_methods_match_references(sample):
    u, v = sample
    tau = stats.kendalltau(u, v).statistic
    assert float(rcjax.model.fit_copula(u, v, "gumbel").theta) == pytest.approx(1 / (1 - tau), rel=1e-12)
    likeliest = scipy.optimize.minimize_scalar(
        lambda theta: -np.log(references.FrankCopula(theta).pdf(sample.T)).sum(), (1.0, 8.0), tol=1e-12
    )
    got = rcjax.model.fit_copula(u, v, rcjax.copulas.Frank, method="likelihood")
    assert float(got.theta) == pytest.approx(likeliest.x, rel=1e-6)
    # As `fit` does it, on any scale.
    log = rcjax.sample_log(96, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    model = rcjax.fit(log)
    confidence = model.calibrate(log)
    assert float(rcjax.model.fit_copula(*confidence.T, "gumbel").theta) == pytest.approx(float(model.copulas.theta[0]))
    assert float(pair_taus_compiled(confidence, log.answered)[0]) == pytest.approx(float(model.copulas.tau()[0]))
    assert type(rcjax.model.fit_copula(u, v, "independence", method="likelihood")) is rcjax.copulas.Independence


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "family", "name"),
    [
        ("tau", rcjax.copulas.Frank, "theta"),
        pytest.param("likelihood", rcjax.copulas.Frank, "theta", marks=pytest.mark.thorough),
        pytest.param("likelihood", rcjax.copulas.StudentT, "rho", marks=pytest.mark.thorough),  # its df by a grid
    ],
)
def test_weights_repeat_observations_and_have_exact_slopes(sample, method, family, name):
    counts = np.random.default_rng(0).multinomial(N, np.full(N, 1 / N)).astype(float)
    way = np.random.default_rng(1).uniform(-1, 1, N)

    def parameter(weights, columns=sample):
        return getattr(rcjax.model.fit_copula(*columns, family, weights, method=method), name)

    repeated = np.repeat(sample, counts.astype(int), axis=1)
    plain = getattr(rcjax.model.fit_copula(*repeated, family, method=method), name)
    np.testing.assert_allclose([parameter(counts), parameter(counts / 7)], plain, rtol=1e-7)
    ones, h = jnp.ones(N), 1e-4
    ends = jax.jit(jax.vmap(parameter))(jnp.stack([ones + h * way, ones - h * way]))
    slope = jax.jit(jax.grad(parameter))(ones)
    assert float(slope @ way) == pytest.approx(float(ends[0] - ends[1]) / 2 / h, rel=1e-5)
    assert float(slope.sum()) == pytest.approx(0.0, abs=1e-9)  # twice all of them is the same sample


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["frank", "clayton"])
def test_a_rank_of_0_or_1_does_not_dominate_the_fit(family):
    drawn = rcjax.copulas.Clayton(4.0) if family == "clayton" else rcjax.copulas.Frank(8.0)
    sample = np.array(drawn.sample(jax.random.key(0), (N,)))
    fitted = jax.jit(lambda pairs: rcjax.model.fit_copula(*pairs, family, method="likelihood").theta)
    plain = float(fitted(sample))
    sample[:, 0], sample[:, 1] = (0.0, 0.5), (0.5, 1.0)
    got = float(fitted(sample))
    sample[:, 0], sample[:, 1] = (0.5 / N, 0.5), (0.5, 1 - 0.5 / N)
    assert got == pytest.approx(float(fitted(sample)), rel=1e-6)
    assert 0.6 < got / plain < 1


def test_invalid_pairs_are_refused_by_name(sample):
    u, v = sample
    for changed, message in (
        ({"family": "frnk"}, "unknown copula 'frnk'"),
        ({"method": "moments"}, "method is 'moments'; it is 'tau' or 'likelihood'"),
        ({"u": np.full_like(u, 0.5)}, "u is 0.5 throughout: a constant has no dependence to fit"),
        ({"v": v[1:]}, r"v has shape \(119,\); u, v and weights must be \(n,\)"),
        ({"u": sample, "v": sample}, r"u has shape \(2, 120\).*jax.vmap for more"),
        ({"u": np.where(u == u[3], np.nan, u)}, r"u\[3\] is nan; it must be finite"),
        ({"v": np.where(v == v[5], 1.5, v), "method": "likelihood"}, r"v\[5\] is 1\.5; it must be finite, 0 to 1"),
        ({"u": np.round(2 * u) / 2, "method": "likelihood"}, "u is 0, or 1, more than once, a point mass"),
        ({"weights": np.where(u == u[2], -1.0, 1.0)}, r"weights\[2\] is -1; it must be finite, 0 to inf"),
    ):
        with pytest.raises(ValueError, match=message):
            rcjax.model.fit_copula(**({"u": u, "v": v, "family": "frank"} | changed))
