"""Spearman's ρ, tail dependence and the density of each family, against what defines them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from tiers import slow_to_compile, thorough

from rcjax.copulas import (
    BB1,
    BB7,
    FGM,
    Clayton,
    Copula,
    Frank,
    Gaussian,
    Gumbel,
    Independence,
    Joe,
    NegativeClayton,
    Plackett,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
    SurvivalJoe,
    Tawn,
    param,
)

pytestmark = pytest.mark.usefixtures("float64")

FAMILIES = [
    *(Independence(), Gumbel(2.0), SurvivalGumbel(1.3), Clayton(2.0), Clayton(0.0), SurvivalClayton(0.7)),
    *(Frank(-6.0), Joe(3.0), SurvivalJoe(1.5), Gaussian(-0.7), StudentT(0.5, 4.0)),
    *(BB1(0.5, 1.5), BB1(2.0, 1.0), BB1(0.0, 2.0), BB7(1.5, 0.5), BB7(3.0, 0.0), BB7(1.0, 2.0), Tawn(3.0, 0.5, 0.9)),
    *(FGM(-0.7), Plackett(4.0), Plackett(0.2), NegativeClayton(2.0)),
]
#: Those whose ρ is the base class's quadrature as Gumbel's is: it is their cdf that differs, which other tests hold.
ALIKE = (SurvivalJoe, SurvivalClayton, Clayton, Frank, Joe, BB1, BB7, Tawn, Plackett)


class Plain(Copula):
    """Clayton's, as a cdf alone."""

    theta: jax.Array = param(2.0, support=(0.1, 20.0))  # pyright: ignore[reportArgumentType]

    def cdf(self, u, v):
        return (u**-self.theta + v**-self.theta - 1) ** (-1 / self.theta)


@pytest.mark.parametrize(
    "copula", thorough(FAMILIES, lambda copula: slow_to_compile(copula) or type(copula) in ALIKE), ids=str
)
def test_spearmans_rho_is_twelve_times_the_integral_of_the_cdf_less_three(copula):
    nodes, weights = np.polynomial.legendre.leggauss(200)
    x, w = (nodes + 1) / 2, weights / 2
    expected = 12 * w @ np.asarray(copula.cdf(x[:, None], x)) @ w - 3
    np.testing.assert_allclose(copula.spearman(), expected, atol=3e-5)


@pytest.mark.thorough
def test_spearmans_rho_matches_samples():
    u, v = Gumbel(2.0).sample(jax.random.key(0), (20_000,))
    assert abs(float(Gumbel(2.0).spearman()) - scipy.stats.spearmanr(u, v).statistic) < 0.01


@pytest.mark.parametrize("copula", thorough(FAMILIES, slow_to_compile), ids=str)
def test_tail_dependence_is_the_limit_of_shares(copula):
    lower, upper = map(float, copula.tail_dependence())
    for share, ratio in (
        (lower, lambda q: float(copula.cdf(q, q)) / q),
        (upper, lambda q: (2 * q - 1 + float(copula.cdf(1 - q, 1 - q))) / q),
    ):
        gaps = [abs(ratio(q) - share) for q in (1e-2, 1e-4)]
        assert gaps[1] < 5e-3 or gaps[1] < 0.7 * gaps[0], (share, gaps)
        assert 0 <= share <= 1


def test_measures_derived_from_a_cdf_match_closed_forms():
    np.testing.assert_allclose(Plain(2.0).spearman(), Clayton(2.0).spearman(), atol=1e-6)
    np.testing.assert_allclose(Plain(2.0).tail_dependence(), Clayton(2.0).tail_dependence(), atol=1e-4)
    batch = Clayton(jnp.array([1.0, 2.0]))
    assert batch.spearman().shape == batch.tail_dependence().lower.shape == (2,)


def test_the_density_integrates_to_one_and_is_zero_outside_the_square():
    nodes, weights = np.polynomial.legendre.leggauss(20)
    density = jax.jit(Frank.pdf)(Frank(3.0), 0.5 + 0.4 * nodes[:, None], 0.5 + 0.3 * nodes)
    c = jax.jit(Frank.cdf)(Frank(3.0), np.array([0.1, 0.9])[:, None], np.array([0.2, 0.8]))
    np.testing.assert_allclose(0.12 * weights @ density @ weights, c[1, 1] - c[0, 1] - c[1, 0] + c[0, 0], atol=1e-12)
    assert float(Frank(3.0).pdf(1.2, 0.5)) == 0


def test_rho_of_families_without_tails_matches_published_formulas():
    np.testing.assert_allclose(Plackett(4.0).spearman(), 5 / 3 - 8 * np.log(4.0) / 9, atol=1e-5)
    np.testing.assert_allclose(FGM(0.9).spearman(), 0.3, atol=1e-12)


def test_slopes_equal_the_conditional_where_ranks_differ_by_a_rounding_error():
    copula = NegativeClayton(2.0)
    np.testing.assert_allclose(jax.grad(copula.cdf)(0.1, 0.9), copula.conditional(0.1, 0.9), rtol=1e-12)


@pytest.mark.parametrize(
    ("copula", "simple"),
    [
        *((BB1(2.0, 1.0), Clayton(2.0)), (BB1(0.0, 2.0), Gumbel(2.0)), (BB7(1.0, 2.0), Clayton(2.0))),
        *((BB7(2.0, 0.0), Joe(2.0)), (Tawn(2.0, 1.0, 1.0), Gumbel(2.0)), (Tawn(2.0, 0.0, 0.5), Independence())),
    ],
    ids=str,
)
def test_families_of_several_parameters_contain_families_of_one(copula, simple):
    u, v = np.random.default_rng(0).uniform(1e-3, 1 - 1e-3, (2, 40))
    for method in ("cdf", "conditional", "conditional_on_v", "log_density"):
        np.testing.assert_allclose(getattr(copula, method)(u, v), getattr(simple, method)(u, v), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(copula.tau(), simple.tau(), atol=1e-6)
    np.testing.assert_allclose(copula.tail_dependence(), simple.tail_dependence(), atol=1e-12)


@pytest.mark.parametrize("family", thorough([BB1, BB7, Tawn], lambda family: family is not BB1))
def test_from_tau_of_several_parameters_has_the_wanted_tau(family):
    taus = jnp.array([-0.3, 0.0, 0.2, 0.7, 0.98])
    np.testing.assert_allclose(family.from_tau(taus).tau(), np.maximum(taus, 0), atol=1e-6)


@pytest.fixture(
    params=[
        (BB1(0.5, 1.5), "bb1", [0.5, 1.5]),
        (BB7(1.5, 0.5), "bb7", [1.5, 0.5]),
        (Tawn(3.0, 0.5, 0.9), "tawn", [0.5, 0.9, 3.0]),
    ],
    ids=lambda param: param[1],
)
def peers(request):
    """(our copula, that of pyvinecopulib)."""
    pv = pytest.importorskip("pyvinecopulib")
    copula, name, parameters = request.param
    return copula, pv.Bicop(getattr(pv.BicopFamily, name), 0, np.array(parameters)[:, None])


UV = np.random.default_rng(0).uniform(size=(200, 2))


def test_families_match_pyvinecopulib(peers):
    copula, peer = peers
    methods = {"cdf": peer.cdf, "conditional": peer.hfunc1, "conditional_on_v": peer.hfunc2, "pdf": peer.pdf}
    for method, reference in methods.items():
        np.testing.assert_allclose(getattr(copula, method)(*UV.T), reference(UV), rtol=1e-8, atol=1e-9)
    assert abs(float(copula.tau()) - peer.tau) < 1e-6


@pytest.mark.thorough
def test_inverses_match_pyvinecopulib(peers):
    copula, peer = peers
    np.testing.assert_allclose(copula.inverse_conditional(*UV.T), peer.hinv1(UV), rtol=1e-8, atol=1e-9)
