"""The laws of every family, by one program: its methods and their slopes, at members and points from all over."""
# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.own_families import FGM, Clayton90, Clayton270, Lopsided
from tiers import thorough

from rcjax import copulas
from rcjax.copulas import (
    BB1,
    BB7,
    Clayton,
    Copula,
    Frank,
    Gaussian,
    Gumbel,
    Independence,
    Joe,
    NegativeClayton,
    Plackett,
    Rotation,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
    SurvivalJoe,
    Tawn,
    param,
)
from rcjax.copulas.base import RadiallySymmetric
from rcjax.testing import check_copula

pytestmark = pytest.mark.usefixtures("float64")


def column(*values):
    return np.array(values, float)[:, None]


#: One batch of members per family, down a column so that it broadcasts against the points.
ARCHIMEDEAN = column(1.0, 1.0 + 1e-9, 1.5, 4.0, 20.0, 50.0)  # up to τ = 0.98 for Gumbel, 0.96 for Joe
FAMILIES = {
    "independence": Independence(column(1.0)),
    "gumbel": Gumbel(ARCHIMEDEAN),
    "survival gumbel": SurvivalGumbel(ARCHIMEDEAN),
    "clayton": Clayton(column(0.0, 1e-9, 0.5, 2.0, 20.0, 98.0)),
    "survival clayton": SurvivalClayton(column(0.0, 1e-9, 0.5, 2.0, 20.0, 98.0)),
    "frank": Frank(column(-200.0, -20.0, -1.0, 0.0, 1e-9, 5.0, 35.0, 200.0)),
    "joe": Joe(column(1.0, 1.0 + 1e-9, 1.5, 5.0, 30.0, 98.0)),
    "survival joe": SurvivalJoe(column(1.0, 1.0 + 1e-9, 1.5, 5.0, 30.0, 98.0)),
    "gaussian": Gaussian(column(-0.9995, -0.5, 0.0, 0.3, 0.95, 0.9995)),
    "student": StudentT(column(-0.9995, -0.5, 0.0, 0.5, 0.95, 0.9995), column(2.0, 4.0, 40.0, 2.0, 4.0, 40.0)),
    "clayton turned by 270": Clayton270(column(0.0, 0.5, 20.0)),
    "fgm": FGM(column(-1.0, 0.0, 0.9)),
    "our fgm": copulas.FGM(column(-1.0, 0.0, 0.9)),
    "plackett": Plackett(column(0.01, 0.5, 1.0, 3.0, 50.0, 300.0)),
    "negative clayton": NegativeClayton(column(0.0, 0.5, 20.0)),
    "bb1": BB1(column(0.0, 1e-9, 0.5, 3.0, 0.0, 30.0, 98.0), column(1.0, 2.0, 1.5, 1.0, 50.0, 20.0, 1.0)),
    "bb7": BB7(column(1.0, 1.5, 3.0, 1.0, 30.0, 98.0, 20.0), column(0.0, 1e-9, 0.5, 98.0, 0.0, 2.0, 30.0)),
    "tawn": Tawn(
        column(1.0, 3.0, 20.0, 50.0, 2.0, 5.0, 5.0),
        column(0.3, 0.5, 0.9, 0.3, 1.0, 0.0, 1.0),
        column(0.9, 0.7, 0.4, 0.9, 1.0, 0.5, 0.3),
    ),
    "lopsided": Lopsided(column(0.0, 0.6, 1.0)),
}
EDGES = np.array([0.0, 1e-300, 1e-12, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.97, 1 - 1e-6, 1 - 1e-12, 1.0])
SIDE = len(EDGES)
U, V = (z.ravel() for z in np.meshgrid(EDGES, EDGES, indexing="ij"))
#: Points that are no corner, and those among them where a float resolves 1 − u.
INSIDE = (np.minimum(U, V) >= 1e-12) & (np.maximum(U, V) <= 1 - 1e-6)
MIDDLE = (np.minimum(U, V) > 1e-3) & (np.maximum(U, V) < 0.99)
METHODS = ("cdf", "conditional", "conditional_on_v", "log_density", "inverse_conditional")

#: The slowest to compile (those of several parameters have a peer in test_copula_measures.py), and turned ones: Clayton
#: by 90 and by 180 is of the default tier, and Gumbel by all three in the test of rotations.
LATER = (
    *("student", "bb1", "bb7", "tawn", "clayton turned by 270"),
    *("survival gumbel", "survival joe"),
)
every_family = pytest.mark.parametrize("name", thorough(FAMILIES, LATER.__contains__))


def members(copula):
    """A column of members as a stack of scalar ones, for jax.vmap."""
    return jax.tree.map(lambda leaf: leaf[:, 0], copula)


@jax.jit
def table(copulas, u, v):
    """(values {method: (K, N)}, slopes of C and of h (K, N, 2) in the parameters, in u and in v) at points (K, N)."""

    def both(copula, u, v):
        return jnp.stack([copula.cdf(u, v), copula.conditional(u, v)])

    def at(copula, u, v):
        return {method: getattr(copula, method)(u, v) for method in METHODS}, jax.jacrev(both, (0, 1, 2))(copula, u, v)

    return jax.vmap(jax.vmap(at, (None, 0, 0)))(copulas, u, v)


@functools.cache
def facts(name):
    """The `table` of a family at all pairs of `EDGES`."""
    copulas = members(FAMILIES[name])
    shape = (len(jax.tree.leaves(copulas)[0]), len(U))
    return jax.tree.map(np.asarray, table(copulas, np.broadcast_to(U, shape), np.broadcast_to(V, shape)))


@every_family
def test_the_cdf_has_uniform_margins_and_frechets_bounds(name):
    flat = facts(name)[0]["cdf"]
    cdf = flat.reshape(-1, SIDE, SIDE)
    for side, margin in ((cdf[:, -1], EDGES), (cdf[..., -1], EDGES), (cdf[:, 0], 0 * EDGES), (cdf[..., 0], 0 * EDGES)):
        np.testing.assert_allclose(side, np.broadcast_to(margin, side.shape), atol=1e-15)
    # Rounding is of 1e-16, times θ = 98 and more where a formula works with logs.
    assert np.all(flat <= np.minimum(U, V) + 1e-13)
    assert np.all(flat >= np.maximum(U + V - 1, 0) - 1e-13)
    assert np.all(np.diff(np.diff(cdf, axis=1), axis=2) >= -2e-13)


@every_family
def test_the_conditionals_are_distributions_and_the_slopes_of_the_cdf(name):
    values, (_, *slopes) = facts(name)
    interior = (EDGES >= 1e-6) & (EDGES <= 1 - 1e-6)  # in the corners themselves the limit depends on the path
    for axis, method, slope in ((-1, "conditional", slopes[0]), (-2, "conditional_on_v", slopes[1])):
        h = values[method]
        assert np.all((h >= 0) & (h <= 1))
        grid = h.reshape(-1, SIDE, SIDE)
        assert np.all(np.diff(grid, axis=axis) >= -1e-15)
        ends = np.moveaxis(grid, axis, -1)[:, interior]
        np.testing.assert_allclose(ends[..., 0], 0, atol=1e-15)
        np.testing.assert_allclose(ends[..., -1], 1, atol=1e-15)
        # The slope of a quadrature has fewer digits than the quadrature: those of the normal and of t need 1e-8.
        np.testing.assert_allclose(h[:, MIDDLE], slope[:, MIDDLE, 0], atol=1e-8)


@every_family
def test_the_inverse_of_the_conditional_inverts_over_the_whole_support(name):
    v = facts(name)[0]["inverse_conditional"]
    assert np.all((v >= 0) & (v <= 1))
    # Where the density is large even a rounding of v moves h far: p must lie between the h of the floats around v.
    below, above = np.clip(v - 4 * np.spacing(v), 0, 1), np.clip(v + 4 * np.spacing(v), 0, 1)
    slack = np.maximum(1e-10 * V, 1e-14)  # 1e-14: Joe's Newton leaves 1e-15 at p = 1e-12, θ = 98
    h, over = (
        np.asarray(table(members(FAMILIES[name]), np.broadcast_to(U, v.shape), z)[0]["conditional"])
        for z in (below, above)
    )
    assert np.all((h <= V + slack)[:, INSIDE])
    assert np.all((over >= V - slack)[:, INSIDE])


@every_family
def test_gradients_are_finite_in_the_corners(name):
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(facts(name)[1]))


@pytest.mark.parametrize("name", thorough(FAMILIES, lambda name: name not in ("gumbel", "lopsided")))
def test_rotations_match_the_law_of_turned_pairs(name):
    base = FAMILIES[name]
    u, v = np.random.default_rng(0).beta(0.3, 0.3, (2, 300)).clip(1e-3, 1 - 1e-3)

    @jax.jit
    def turned(base):
        cdf, h, on_v = (
            [getattr(base, method)(a, b) for a, b in ((1 - u, v), (1 - u, 1 - v), (u, 1 - v))] for method in METHODS[:3]
        )
        classes = [types.new_class("T", (Rotation,), {"family": type(base), "degrees": by}) for by in (90, 180, 270)]
        copulas = [cls(*jax.tree.leaves(base)) for cls in classes]
        ours = [[getattr(copula, method)(u, v) for copula in copulas] for method in METHODS[:3]]
        return ours, [
            [v - cdf[0], u + v - 1 + cdf[1], u - cdf[2]],
            [h[0], 1 - h[1], 1 - h[2]],
            [1 - on_v[0], 1 - on_v[1], on_v[2]],
        ]

    # 1 − u is another point than u by a rounding, which moves h by as much times the density.
    for ours, reference in zip(*turned(base), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(reference), atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_passes_check_copula(name):
    check_copula(type(FAMILIES[name]))


@pytest.mark.parametrize("family", [Gaussian, pytest.param(StudentT, marks=pytest.mark.thorough)])
def test_correlations_of_one_are_frechets_bounds(family):
    # ρ stays two roundings off ±1, and √(1 − ρ²) is of the order of 1e-8.
    cdf, conditional = jax.jit(lambda rho: (family(rho).cdf(U, V), family(rho).conditional(U, V)))(column(1.0, -1.0))
    np.testing.assert_allclose(cdf, [np.minimum(U, V), np.maximum(U + V - 1, 0)], atol=1e-7)
    apart = INSIDE & (U != V)
    np.testing.assert_allclose(conditional[0][apart], (U < V)[apart], atol=1e-7)


def test_inverses_found_as_roots_have_implicit_slopes():
    theta, u, p = 0.9, 0.3, 0.6  # the last member of the family of this file, whose program this is
    v, slopes = jax.jit(jax.value_and_grad(lambda *z: FGM(z[0]).inverse_conditional(*z[1:]), (0, 1, 2)))(theta, u, p)
    _, (by_theta, by_u, by_v) = table(members(FAMILIES["fgm"]), *(np.full((3, len(U)), z) for z in (u, v)))
    along, across, density = by_theta.theta[-1, 0, 1], by_u[-1, 0, 1], by_v[-1, 0, 1]
    np.testing.assert_allclose(slopes, [-along / density, -across / density, 1 / density], rtol=1e-9)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SurvivalGumbel(0.5), "SurvivalGumbel: theta is 0.5; it must lie in [1, inf)"),
        (lambda: Joe(np.array([2.0, 0.0, 3.0])), "Joe: theta is 0; it must lie in [1, inf)"),
        (lambda: StudentT(0.5, 0.5), "StudentT: df is 0.5; it must lie in [1, inf)"),
        (lambda: Frank(np.nan), "Frank: theta is nan; it must lie in (-inf, inf)"),
        (lambda: param(2.0, support=(0.0, 1.0)), "default 2.0 lies outside the support (0.0, 1.0)"),
    ],
)
def test_a_bad_parameter_is_named_with_its_interval(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_traced_parameters_are_not_checked():
    assert float(jax.jit(lambda theta: Gumbel(theta).tau())(0.5)) == -1.0


def test_integer_points_are_accepted():
    ends = np.array([[0, 1], [1, 0]])
    for method in (FGM(0.9).conditional, FGM(0.9).conditional_on_v, FGM(0.9).log_density, Plackett(3.0).conditional):
        for u, v in (ends, ends == 1):
            np.testing.assert_array_equal(method(u, v), method(u.astype(float), v.astype(float)))
    assert FGM(0.9).conditional(0, 1) == 1
    assert FGM(0.9).conditional(jnp.float32(0.5), 1).dtype == jnp.float32


def test_the_base_class_names_the_missing_method():
    class Empty(Copula):
        pass

    for method in ("cdf", "conditional", "log_density", "inverse_conditional"):
        with pytest.raises(TypeError, match=re.escape("Empty defines no cdf(self, u, v)")):
            getattr(Empty(), method)(0.5, 0.5)
    with pytest.raises(TypeError, match=re.escape("RadiallySymmetric defines no lower_cdf(self, u, v)")):
        RadiallySymmetric().cdf(0.5, 0.5)
    with pytest.raises(TypeError, match=r"Empty has no .*parameter to fit to tau"):
        Empty.from_tau(0.1)


def test_a_family_declares_the_domains_of_its_parameters():
    assert FGM.supports == {"theta": (-1.0, 1.0)}
    assert SurvivalGumbel.supports == Gumbel.supports == {"theta": (1.0, np.inf)}
    assert StudentT.supports == {"rho": (-1.0, 1.0), "df": (1.0, np.inf)}
    assert list(StudentT.grids) == ["df"]
    assert min(StudentT.grids["df"]) == 2.0
    assert Clayton90(3.0) == Clayton90(theta=3.0)
    assert repr(StudentT(0.5, 4.0)) == "StudentT(rho=0.5, df=4.0)"


@pytest.mark.thorough
@pytest.mark.parametrize("copula", [Clayton(2.0), SurvivalClayton(2.0), Clayton90(2.0)], ids=str)
def test_the_mass_outside_the_unit_square_is_zero(copula):
    u, v = np.array([-0.5, 1.5, 0.3, 0.3, -1.0, np.nan]), np.array([0.3, 0.3, -0.5, 1.5, 2.0, 0.3])
    np.testing.assert_array_equal(copula.log_density(u, v)[:5], -np.inf)
    np.testing.assert_allclose(copula.cdf(u, v), [0, 0.3, 0, 0.3, 0, np.nan], rtol=1e-15)
    np.testing.assert_array_equal(copula.conditional(0.3, v[2:4]), [0, 1])
    np.testing.assert_array_equal(copula.conditional_on_v(u[:2], 0.3), [0, 1])
    assert np.isnan(copula.log_density(np.nan, 0.3))
