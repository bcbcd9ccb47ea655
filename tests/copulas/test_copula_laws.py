"""The laws of every family, at parameters from all over its support."""
# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own_families import FGM, Clayton90, Clayton270, Lopsided
from tiers import thorough

from rcjax.copulas import (
    Clayton,
    Copula,
    Frank,
    Gaussian,
    Gumbel,
    Independence,
    Joe,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
    SurvivalJoe,
    param,
)
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
    "clayton turned by 90": Clayton90(column(0.0, 0.5, 20.0)),
    "clayton turned by 270": Clayton270(column(0.0, 0.5, 20.0)),
    "fgm": FGM(column(-1.0, 0.0, 0.9)),
    "lopsided": Lopsided(column(0.0, 0.6, 1.0)),
}
#: One parameter per family in the middle of its support.
MODERATE = {
    "gumbel": Gumbel(1.7),
    "survival gumbel": SurvivalGumbel(2.3),
    "clayton": Clayton(1.5),
    "survival clayton": SurvivalClayton(0.8),
    "frank": Frank(-4.0),
    "joe": Joe(2.5),
    "survival joe": SurvivalJoe(1.4),
    "gaussian": Gaussian(-0.6),
    "student": StudentT(0.4, 5.5),
    "clayton turned by 270": Clayton270(1.5),
    "fgm": FGM(0.7),
}
GRID = np.array([1e-12, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.97, 1 - 1e-6])
U, V = (z.ravel() for z in np.meshgrid(GRID, GRID, indexing="ij"))
SIDE = len(GRID)


#: Those that differ most; of every family the default tier has the oracles of `test_copula_references`.
FEW = thorough(FAMILIES, lambda name: name not in ("gumbel", "gaussian", "clayton turned by 90", "lopsided"))


@pytest.fixture(params=FEW)
def family(request):
    return FAMILIES[request.param]


@functools.cache
def program(method):
    """One compiled call per method, family and shape."""
    return jax.jit(lambda copula, *arguments: getattr(copula, method)(*arguments))


def evaluate(method, copula, *arguments):
    return np.asarray(program(method)(copula, *arguments))


def members(copula):
    """A column of members as a stack of scalar ones, for jax.vmap."""
    return jax.tree.map(lambda leaf: leaf[:, 0], copula)


@functools.cache
def slopes(method):
    """The derivatives of a method in u and v, for a column of members at a row of points."""

    def call(copula, u, v):
        both = jax.grad(lambda c, u, v: getattr(c, method)(u, v), argnums=(1, 2))
        row = jax.vmap(both, in_axes=(None, 0, 0))
        return jax.vmap(row, in_axes=(0, None, None))(members(copula), u, v)

    return jax.jit(call)


#: Every law of the contract is checked of every family below; the check itself is run on a few that differ most.
CONTRACT = thorough(FAMILIES, lambda name: name not in ("independence", "gumbel", "frank", "clayton turned by 90"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTRACT)
def test_every_family_keeps_the_contract(name):
    check_copula(type(FAMILIES[name]))


def test_the_cdf_has_uniform_margins_and_frechets_bounds(family):
    edge = np.concatenate([[0.0], GRID, [1.0]])
    u, v = (z.ravel() for z in np.meshgrid(edge, edge, indexing="ij"))
    flat = evaluate("cdf", family, u, v)
    cdf = flat.reshape(-1, len(edge), len(edge))
    for found, expected in ((cdf[:, -1], edge), (cdf[..., -1], edge), (cdf[:, 0], 0 * edge), (cdf[..., 0], 0 * edge)):
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1e-15)
    # Rounding is of 1e-16, times θ = 98 and more where a formula works with logs.
    assert np.all(flat <= np.minimum(u, v) + 1e-13)
    assert np.all(flat >= np.maximum(u + v - 1, 0) - 1e-13)
    assert np.all(np.diff(np.diff(cdf, axis=1), axis=2) >= -2e-13)


def test_the_conditionals_are_distributions_and_the_slopes_of_the_cdf(family):
    inside = (np.minimum(U, V) > 1e-3) & (np.maximum(U, V) < 0.99)
    of_cdf = slopes("cdf")(family, U, V)
    for axis, method, slope in ((-1, "conditional", of_cdf[0]), (-2, "conditional_on_v", of_cdf[1])):
        h = evaluate(method, family, U, V)
        assert np.all((h >= 0) & (h <= 1))
        assert np.all(np.diff(h.reshape(-1, SIDE, SIDE), axis=axis) >= -1e-15)
        # The slope of a quadrature has fewer digits than the quadrature: the elliptical families need 1e-8.
        h, slope = np.broadcast_arrays(h, slope)
        np.testing.assert_allclose(h[:, inside], slope[:, inside], atol=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_log_density_is_the_log_of_the_slope_of_the_conditional(name):
    family = FAMILIES[name]
    _, slope = slopes("conditional")(family, U, V)
    density = np.exp(evaluate("log_density", family, U, V))
    # The slope of h loses what 1 − u does, 1e-10 where the density is 1; the oracles look at small densities.
    np.testing.assert_allclose(np.broadcast_to(density, slope.shape), slope, rtol=1e-8, atol=1e-9)


def test_the_inverse_of_the_conditional_inverts_over_the_whole_support(family):
    u, p = U, V
    v = evaluate("inverse_conditional", family, u, p)
    assert np.all((v >= 0) & (v <= 1))
    # Where the density is large even a rounding of v moves h far: p must lie between the h of the floats around v.
    below, above = np.clip(v - 4 * np.spacing(v), 0, 1), np.clip(v + 4 * np.spacing(v), 0, 1)
    slack = np.maximum(1e-10 * p, 1e-14)  # 1e-14: Joe's Newton leaves 1e-15 at p = 1e-12, θ = 98
    assert np.all(evaluate("conditional", family, u, below) <= p + slack)
    assert np.all(evaluate("conditional", family, u, above) >= p - slack)


@pytest.mark.parametrize("method", ["conditional", "conditional_on_v"])
def test_the_conditionals_have_their_limits_at_the_ends(family, method):
    ends, inside = np.array([0.0, 1.0]), np.array([0.0, 1e-6, 0.3, 0.999, 1.0])
    given, end = (z.ravel() for z in np.meshgrid(inside, ends, indexing="ij"))
    points = (given, end) if method == "conditional" else (end, given)
    h = evaluate(method, family, *points)
    assert np.all((h >= 0) & (h <= 1))
    interior = (given > 0) & (given < 1)  # in the corners themselves the limit depends on the path
    np.testing.assert_allclose(h[..., interior], np.broadcast_to(end, h.shape)[..., interior], atol=1e-15)


#: Three quarters of the time go to the slopes of Student's cdf, which is an integral.
@pytest.mark.parametrize(
    ("name", "methods"),
    [
        *((name, ("cdf", "conditional")) for name in FAMILIES if name != "student"),
        ("student", ("conditional",)),
        pytest.param("student", ("cdf",), marks=pytest.mark.thorough),
    ],
)
def test_gradients_are_finite_in_the_corners(name, methods):
    family = FAMILIES[name]
    corners = np.array([0.0, 1e-300, 1e-12, 0.5, 1 - 1e-12, 1.0])
    u, v = (z.ravel() for z in np.meshgrid(corners, corners))

    def every(copula, u, v):
        return [getattr(copula, method)(u, v) for method in methods]

    slopes = jax.vmap(jax.vmap(jax.jacrev(every), in_axes=(None, 0, 0)), in_axes=(0, None, None))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(jax.jit(slopes)(members(family), u, v)))


INDEPENDENT = [
    Gumbel(1.0), SurvivalGumbel(1.0), Clayton(0.0), SurvivalClayton(0.0), Clayton90(0.0), Frank(0.0), Frank(-1e-300),
    Joe(1.0), SurvivalJoe(1.0), Gaussian(0.0), FGM(0.0), Lopsided(0.0),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("copula", INDEPENDENT, ids=str)
def test_the_end_of_the_support_is_independence(copula):
    for method in ("cdf", "conditional", "log_density", "inverse_conditional"):
        expected = getattr(Independence(), method)(U, V)
        np.testing.assert_allclose(evaluate(method, copula, U, V), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", [Gaussian, pytest.param(StudentT, marks=pytest.mark.thorough)])
def test_correlations_of_one_are_frechets_bounds(family):
    # ρ stays two roundings off ±1, and √(1 − ρ²) is of the order of 1e-8.
    np.testing.assert_allclose(evaluate("cdf", family(1.0), U, V), np.minimum(U, V), atol=1e-7)
    np.testing.assert_allclose(evaluate("cdf", family(-1.0), U, V), np.maximum(U + V - 1, 0), atol=1e-7)
    np.testing.assert_allclose(evaluate("conditional", family(1.0), U, V)[U != V], (U < V)[U != V], atol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FEW)
def test_copulas_are_pytrees_and_broadcast_as_vmap_does(name):
    family = FAMILIES[name]
    leaves, structure = jax.tree.flatten(family)
    assert len(leaves) == len(family.supports)
    assert type(jax.tree.unflatten(structure, leaves)) is type(family)
    names = [path[0].name for path, _ in jax.tree_util.tree_flatten_with_path(family)[0]]
    assert names == list(family.supports)

    def every(copula):
        return copula.cdf(u, v), copula.conditional(u, v), copula.log_density(u, v), copula.inverse_conditional(u, v)

    u, v = U[9:12], V[9:12]
    for whole, each in zip(jax.jit(every)(family), jax.jit(jax.vmap(every))(members(family)), strict=True):
        assert whole.shape == (len(leaves[0]), 3)
        np.testing.assert_allclose(whole, each, rtol=1e-13)


@pytest.mark.thorough
@pytest.mark.parametrize("name", thorough(MODERATE, "student".__eq__))
def test_gradients_through_the_inverse_are_the_central_differences(name):
    leaves, structure = jax.tree.flatten(MODERATE[name])

    def inverse(*values):
        return jax.tree.unflatten(structure, values[2:]).inverse_conditional(*values[:2])

    batched = jax.jit(jax.vmap(inverse))
    points = [np.array([0.3, 0.8, 0.05]), np.array([0.6, 0.1, 0.95]), *(np.full(3, leaf) for leaf in leaves)]
    slopes = jax.jit(jax.vmap(jax.grad(inverse, argnums=tuple(range(len(points))))))(*points)
    for place, slope in enumerate(slopes):
        step = np.where(np.arange(len(points)) == place, 1e-6, 0.0)
        up, down = (batched(*(z + sign * h for z, h in zip(points, step, strict=True))) for sign in (1, -1))
        # 1e-16 of rounding over a step of 1e-6, and of the order of the step's square.
        np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gumbel(0.5), "Gumbel: theta is 0.5; it must lie in [1, inf)"),
        (lambda: SurvivalGumbel(0.5), "SurvivalGumbel: theta is 0.5; it must lie in [1, inf)"),
        (lambda: Clayton(-0.1), "Clayton: theta is -0.1; it must lie in [0, inf)"),
        (lambda: Joe(np.array([2.0, 0.0, 3.0])), "Joe: theta is 0; it must lie in [1, inf)"),
        (lambda: Gaussian(-1.5), "Gaussian: rho is -1.5; it must lie in [-1, 1]"),
        (lambda: StudentT(0.5, 0.5), "StudentT: df is 0.5; it must lie in [1, inf)"),
        (lambda: Gumbel(np.nan), "Gumbel: theta is nan; it must lie in [1, inf)"),
        (lambda: Frank(np.nan), "Frank: theta is nan; it must lie in (-inf, inf)"),
        (lambda: Gumbel(np.inf), "Gumbel: theta is inf; it must lie in [1, inf)"),
        (lambda: FGM(jnp.array([0.0, np.nan])), "FGM: theta is nan; it must lie in [-1, 1]"),
        (lambda: param(2.0, support=(0.0, 1.0)), "default 2.0 lies outside the support (0.0, 1.0)"),
    ],
)
def test_a_bad_parameter_is_named_with_its_interval(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_a_parameter_is_not_looked_at_while_jax_traces():
    assert float(jax.jit(lambda theta: Gumbel(theta).tau())(0.5)) == -1.0


@pytest.mark.parametrize("cls", [Gumbel, SurvivalClayton, StudentT, FGM])
@pytest.mark.parametrize("method", ["cdf", "conditional", "log_density", "inverse_conditional"])
def test_shapes_that_do_not_broadcast_are_refused_in_words(cls, method):
    if cls is FGM and method == "cdf":
        pytest.skip("the user's own function")
    with pytest.raises(ValueError, match=f"{cls.__name__}: arguments of shapes .* do not broadcast"):
        getattr(cls(), method)(np.full(2, 0.5), np.full(3, 0.5))
    with pytest.raises(ValueError, match=f"{cls.__name__}: .* parameters of shapes .* do not broadcast"):
        getattr(cls(np.full(3, 1.0)), method)(np.full(2, 0.5), 0.5)


def test_the_base_class_says_what_is_missing():
    class Empty(Copula):
        pass

    for method in ("cdf", "conditional", "log_density", "inverse_conditional"):
        with pytest.raises(TypeError, match=re.escape("Empty defines no cdf(self, u, v)")):
            getattr(Empty(), method)(0.5, 0.5)
    with pytest.raises(TypeError, match=r"Empty has no .*parameter to fit to tau"):
        Empty.from_tau(0.1)


def test_a_family_says_where_its_parameters_live():
    assert FGM.supports == {"theta": (-1.0, 1.0)}
    assert SurvivalGumbel.supports == Gumbel.supports == {"theta": (1.0, np.inf)}
    assert StudentT.supports == {"rho": (-1.0, 1.0), "df": (1.0, np.inf)}
    assert list(StudentT.grids) == ["df"]
    assert min(StudentT.grids["df"]) == 2.0
    assert Clayton90(3.0) == Clayton90(theta=3.0)
    assert repr(StudentT(0.5, 4.0)) == "StudentT(rho=0.5, df=4.0)"


@pytest.mark.thorough
@pytest.mark.parametrize("copula", [Clayton(2.0), SurvivalClayton(2.0), Clayton90(2.0)], ids=str)
def test_outside_the_unit_square_there_is_no_mass(copula):
    u, v = np.array([-0.5, 1.5, 0.3, 0.3, -1.0, np.nan]), np.array([0.3, 0.3, -0.5, 1.5, 2.0, 0.3])
    np.testing.assert_array_equal(copula.log_density(u, v)[:5], -np.inf)
    np.testing.assert_allclose(copula.cdf(u, v), [0, 0.3, 0, 0.3, 0, np.nan], rtol=1e-15)
    np.testing.assert_array_equal(copula.conditional(0.3, v[2:4]), [0, 1])
    np.testing.assert_array_equal(copula.conditional_on_v(u[:2], 0.3), [0, 1])
    assert np.isnan(copula.log_density(np.nan, 0.3))
