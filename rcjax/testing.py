"""The check of a user-defined family of copulas against its contract.

    from rcjax.testing import check_copula

    check_copula(MyFamily)         # at its default, the ends of its support, and several τ
    check_copula(MyFamily(0.7))    # at one parameter

Takes a class or an instance; raises an AssertionError that names each failed law and its worst point. The families of
rcjax pass the same check.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.numerics import kendall_tau
from rcjax.copulas import Copula
from rcjax.copulas.base import finite_ends, tau_by_quadrature

__all__ = ["check_copula"]

#: A law yields findings: (name, u, v, values there, their excess over what the law allows).
Finding = tuple[Any, ...]

_TAUS = np.array([-0.5, 0.2, 0.7, 0.95])


def check_copula(copula: Copula | type[Copula]) -> None:
    """Raise an AssertionError with every failed law and the (u, v, parameters) at which it fails worst.

    A class is checked at its default parameters, at the ends of their supports, and at τ = −0.5, 0.2, 0.7, 0.95 and
    ±0.98, or at the nearest τ that the family reaches. In place of an infinite end, a parameter is 300 away from the
    other end, or from 0. The laws:

    - cdf: boundary conditions, Fréchet's bounds, 2-increasing, C(u, v) = C(v, u) if `exchangeable`;
    - conditionals: within [0, 1], monotone, slopes of the cdf; their inverse;
    - density: ∂²C/∂u∂v, mass 1, finite near the corners;
    - τ: as defined and as sampled; `from_tau`;
    - finite gradients near the corners; float32; jit, vmap and the pytree round trip.

    A family given by a cdf alone has numerical densities. If such a density is close to 0, its sign and logarithm are
    rounding errors and are not checked.

    Args:
        copula: an instance (or a batch, with parameters of any shape), or a class.

    >>> from rcjax.copulas import Copula
    >>> class Lopsided(Copula):
    ...     theta: float = 0.5
    ...     def cdf(self, u, v):
    ...         return u * v**self.theta
    >>> try:
    ...     check_copula(Lopsided())
    ... except AssertionError as report:
    ...     print(str(report).splitlines()[2])
    - C(1, v) = v fails at u = 1, v = 0.25, theta = 0.5: 0.5, 0.25 beyond what is allowed
    """
    family = copula if isinstance(copula, type) else type(copula)
    with jax.enable_x64(True):
        first = family() if isinstance(copula, type) else _unstack(copula)[0]
        failures = _untraceable(first)
        if not failures:
            members = _members(family) if isinstance(copula, type) else _unstack(copula)
            failures = [text for law in _LAWS for text in _worst(law, members)] or _structure(family, members)
    if failures:
        text = "\n".join(f"- {failure}" for failure in failures)
        raise AssertionError(f"{family.__name__} is not a copula as it stands:\n{text}")


def _untraceable(member: Copula) -> list[str]:
    """List the failures that keep any law from being checked: no cdf, or a cdf that JAX cannot trace or broadcast."""
    try:
        points = jnp.ones((3, 1)) / 2, jnp.ones(2) / 2
        shape = jax.eval_shape(lambda member, u, v: member.cdf(u, v), member, *points).shape
    except Exception as problem:  # the report shows whatever the user's code raises
        return [f"cdf(u, v) cannot be traced by jax: {type(problem).__name__}: {str(problem).splitlines()[0]}"]
    return [] if shape == (3, 2) else [f"cdf(u, v) of shapes (3, 1) and (2,) has shape {shape}; it must have (3, 2)"]


def _worst(law: Callable[[Any], Iterable[Finding]], members: Sequence[Copula]) -> Iterator[str]:
    """Describe each failed part of a law in a line: the first member at which it fails, at its worst point."""
    reported = set()
    for member in members:
        for name, *columns in law(member):
            u, v, got, excess = np.broadcast_arrays(*(np.asarray(column, float) for column in columns))
            excess = np.where(np.isfinite(got), excess, np.inf)
            if excess.max() > 0 and name not in reported:
                reported.add(name)
                at = np.unravel_index(excess.argmax(), excess.shape)
                figure = f"{got[at]:.10g}, {excess[at]:.2g} beyond what is allowed"
                yield f"{name} fails at {_where(member, u[at], v[at])}: {figure}"


def _members(family: type[Copula]) -> list[Copula]:
    """Return members of the family across its support: default, ends, and several τ."""
    default: Any = family()
    members = [default]
    for name, support in family.supports.items():
        ends = finite_ends(support) if name in family.free else [end for end in support if np.isfinite(end)]
        members += [dataclasses.replace(default, **{name: end}) for end in ends]
    if family.free:
        # Padded to the number of members, as in `_structure`: operations of one shape compile once.
        wanted = np.concatenate([_TAUS, [-family.MAX_TAU, family.MAX_TAU]])
        taus = np.pad(wanted, (0, len(members)), "edge")
        members += _unstack(family.from_tau(jnp.asarray(taus)))[: len(wanted)]
    return [jax.tree.map(lambda leaf: jnp.asarray(leaf, float), member) for member in members]


def _unstack(copula: Copula) -> list[Copula]:
    leaves, structure = jax.tree.flatten(copula)
    columns = [np.ravel(column) for column in np.broadcast_arrays(*map(np.asarray, leaves))] if leaves else []
    points = zip(*columns, strict=True) if columns else [()]
    return [jax.tree.unflatten(structure, [jnp.asarray(value, float) for value in point]) for point in points]


def _where(member: Any, u: float, v: float) -> str:
    values = [f"{f.name} = {float(getattr(member, f.name)):.6g}" for f in dataclasses.fields(member)]
    return ", ".join([f"u = {u:.10g}", f"v = {v:.10g}", *values])


def _structure(family: type[Copula], members: Sequence[Copula]) -> list[str]:
    """Check the laws of the class rather than of a point: jit, vmap, the pytree round trip, `from_tau`."""
    leaves, structure = jax.tree.flatten(members[0])
    rebuilt = jax.tree.unflatten(structure, leaves)
    same = type(rebuilt) is family and jax.tree.leaves(rebuilt) == leaves
    failures = [] if same else ["flattening and unflattening it as a pytree gives something else"]
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *members)
    u, v = (jnp.asarray(points) for points in _mesh(_INSIDE, _INSIDE))
    for name in ("cdf", "conditional", "log_density"):
        for member, row in zip(members, _batched(batch, u, v, name), strict=True):
            # Only the first member is called without jit, since compiled calls take a fraction of the time.
            alone = getattr(member, name)(u, v) if member is members[0] else _METHODS[name](member, u, v)
            if name == "log_density" and _is_derived(member):
                row, alone = np.exp(row), np.exp(alone)
                row, alone = (np.where(np.nan_to_num(x) < _DENSITY_ROUNDING, 0.0, x) for x in (row, alone))
            if not np.allclose(row, alone, rtol=1e-6, atol=1e-9, equal_nan=True):
                at = int(np.nanargmax(np.abs(np.asarray(row) - np.asarray(alone))))
                failures.append(f"vmap and jit change {name}, at {_where(member, float(u[at]), float(v[at]))}")
    if len(family.supports) == len(family.free) == 1:
        taus = np.array([float(_tau_of(member)) for member in members])
        roundtrip = np.asarray(_taus(family.from_tau(jnp.asarray(taus))))
        for member, tau, recovered in zip(members, taus, roundtrip, strict=True):
            if abs(tau) <= family.MAX_TAU and not abs(recovered - tau) <= 1e-3:
                failures.append(f"from_tau({tau:.6g}) has τ {recovered:.6g}, though {member} has {tau:.6g}")
    return failures


@partial(jax.jit, static_argnames="name")
def _batched(copulas: Copula, u: jax.Array, v: jax.Array, name: str) -> jax.Array:
    return jax.vmap(lambda c: getattr(c, name)(u, v))(copulas)


# The laws: functions from a copula to findings (`Finding`).

#: Ranks in the interior, away from the corners.
_INSIDE = np.array([0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98])

_GRID = np.concatenate([[1e-9, 1e-6, 1e-3], _INSIDE, 1 - np.array([1e-3, 1e-6, 1e-9])])

_CORNERS = np.array([1e-6, 0.5, 1 - 1e-6])

#: A finer grid, so that narrow regions of negative density are found.
_LINES = np.concatenate([[1e-4, 1e-3], np.arange(1, 96) / 96, 1 - np.array([1e-3, 1e-4])])

_SAMPLES = 2000

#: A numerical density below this is a rounding error.
_DENSITY_ROUNDING = 1e-8

_BLOCK = 256

#: Halvings of pieces of V: twelve for each end of a ridge leave 2⁻¹² of a fifth, less than the law allows.
_HALVINGS = 24


def _compiled(method: str) -> Callable[..., Any]:
    """Compile a method of a family once, for all parameters."""

    @jax.jit
    def call(copula: Copula, *arguments: ArrayLike) -> Any:
        return getattr(copula, method)(*arguments)

    return call


def _by_block(method: str) -> Callable[..., Any]:
    """Compile a method once for any number of points too, evaluated in blocks: compilation dominates the time."""
    compiled = _compiled(method)

    def call(copula: Copula, *points: ArrayLike) -> np.ndarray:
        columns = np.broadcast_arrays(*map(np.asarray, points))
        count = columns[0].size
        filled = [np.pad(column.ravel(), (0, -count % _BLOCK), "edge") for column in columns]
        blocks = [
            np.asarray(compiled(copula, *(column[start : start + _BLOCK] for column in filled)))
            for start in range(0, count, _BLOCK)
        ]
        return np.concatenate(blocks)[:count].reshape(columns[0].shape)

    return call


#: Methods of a copula at points, by name.
_METHODS = {
    name: _by_block(name) for name in ("cdf", "conditional", "conditional_on_v", "log_density", "inverse_conditional")
}
_cdf, _conditional, _conditional_on_v, _log_density, _inverse = _METHODS.values()

_tau_of = _compiled("tau")

_taus = jax.jit(jax.vmap(lambda c: c.tau()))
_defined_tau = jax.jit(tau_by_quadrature)


def _mesh(first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
    """Return the coordinates of all pairs of points, flattened."""
    return (points.ravel() for points in np.meshgrid(first, second, indexing="ij"))


def _boundaries(c: Copula) -> Iterator[Finding]:
    ends = np.array([1e-12, 1 - 1e-12])
    for name, u, v, expected in (
        ("C(u, 0) = 0", _GRID, 0 * _GRID + ends[0], 0 * _GRID),
        ("C(0, v) = 0", 0 * _GRID + ends[0], _GRID, 0 * _GRID),
        ("C(u, 1) = u", _GRID, 0 * _GRID + ends[1], _GRID),
        ("C(1, v) = v", 0 * _GRID + ends[1], _GRID, _GRID),
    ):
        got = _cdf(c, u, v)
        yield name, u, v, got, np.abs(got - expected) - 1e-9


def _bounds(c: Copula) -> Iterator[Finding]:
    u, v = _mesh(_GRID, _GRID)
    got = _cdf(c, u, v)
    yield "C(u, v) ≤ min(u, v)", u, v, got, got - np.minimum(u, v) - 1e-12
    yield "C(u, v) ≥ u + v − 1", u, v, got, np.maximum(u + v - 1, 0) - got - 1e-12
    for cell, lines in (("cell", _GRID), ("narrow cell", _LINES)):
        corners = _cdf(c, *_mesh(lines, lines)).reshape(len(lines), -1)
        volume = np.diff(np.diff(corners, axis=0), axis=1).ravel()
        u, v = _mesh(lines[1:], lines[1:])
        yield f"2-increasing (the volume of the {cell} below)", u, v, volume, -volume - 1e-12
    if c.exchangeable:  # exchangeable conditionals follow: they are checked against slopes of the cdf
        u, v = _mesh(_INSIDE, _INSIDE)
        got = _cdf(c, u, v)
        yield "exchangeable: C(u, v) = C(v, u)", u, v, got, np.abs(got - _cdf(c, v, u)) - 1e-9


def _conditionals(c: Copula) -> Iterator[Finding]:
    u, v = _mesh(_GRID, _GRID)
    side = len(_GRID)
    inside_u, inside_v = _mesh(_INSIDE, _INSIDE)
    _, along_u, along_v = _slopes(c, inside_u, inside_v, "cdf")
    for name, method, axis, slope in (
        ("conditional", _conditional, 1, along_u),
        ("conditional_on_v", _conditional_on_v, 0, along_v),
    ):
        got = method(c, u, v)
        yield f"{name} within [0, 1]", u, v, got, np.maximum(-got, got - 1) - 1e-9
        fall = -np.diff(got.reshape(side, side), axis=axis, prepend=0.0).ravel()
        yield f"{name} monotone", u, v, got, fall - 1e-9
        got = method(c, inside_u, inside_v)
        yield f"{name} is the slope of the cdf", inside_u, inside_v, got, np.abs(got - slope) - 1e-6


def _inverses(c: Copula) -> Iterator[Finding]:
    u, p = _mesh(_GRID[1:-1], _INSIDE)
    v = _inverse(c, u, p)
    yield "inverse_conditional within [0, 1]", u, p, v, np.maximum(-v, v - 1)
    got = _conditional(c, u, v)
    # A rounding error of v changes h by the error times the density.
    inside = np.clip(v, 1e-300, 1 - 1e-16)
    slack = 1e-8 + 8 * np.finfo(float).eps * np.exp(np.minimum(_log_density(c, u, inside), 700.0))
    yield "conditional(u, inverse_conditional(u, p)) = p, with v = p,", u, p, got, np.abs(got - p) - slack


def _densities(c: Copula) -> Iterator[Finding]:
    u, v = _mesh(_INSIDE, _INSIDE)
    _, _, expected = _slopes(c, u, v, "conditional")
    got = np.exp(_log_density(c, u, v))
    # A density below 0 has no logarithm.
    yield "∂²C/∂u∂v ≥ 0", u, v, expected, -expected - 1e-6
    got = np.where(_is_derived(c) & (np.abs(expected) < _DENSITY_ROUNDING), np.nan_to_num(got), got)
    yield "exp(log_density) is ∂²C/∂u∂v", u, v, got, np.abs(got - expected) - 1e-5 * (1 + np.abs(expected))
    yield from _log_densities(c)
    masses = np.array([_mass_between_quantiles(c, u) for u in _INSIDE])
    name = "the density between quantiles 0.01 and 0.99 of V has mass 0.98"
    yield name, _INSIDE, 0.5, masses, np.abs(masses - 0.98) - 1e-4


def _mass_between_quantiles(c: Copula, u: float) -> float:
    """Integrate the density at u between the quantiles 0.01 and 0.99 of V given u; 0.98 if the density is right.

    Gauss–Legendre quadrature runs between quantiles of V, in which even a ridge is smooth. If a ridge begins within a
    piece, the piece whose mass is farthest from its levels is halved. Halving ends when the total is right, or after
    `_HALVINGS` steps, as for a wrong density.
    """
    levels = np.array([0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])
    ends = _inverse(c, u, levels)
    masses = _masses(c, u, ends)
    for _ in range(_HALVINGS):
        if abs(masses.sum() - 0.98) <= 1e-4:
            break
        worst = int(np.argmax(np.abs(masses - np.diff(levels))))
        levels = np.insert(levels, worst + 1, levels[worst : worst + 2].mean())
        ends = np.insert(ends, worst + 1, _inverse(c, u, levels[worst + 1]))
        masses = np.insert(np.delete(masses, worst), worst, _masses(c, u, ends[worst : worst + 3]))
    return float(masses.sum())


def _masses(c: Copula, u: float, ends: np.ndarray) -> np.ndarray:
    """Integrate the density at u between m + 1 values of v: (m,)."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    low, width = ends[:-1, None], np.diff(ends)[:, None]
    at = low + width * (nodes + 1) / 2
    density = np.exp(_log_density(c, np.full(at.shape, u), at))
    return (density * width) @ weights / 2


def _log_densities(c: Copula) -> Iterator[Finding]:
    """Check that the log density is a number or −∞, near the corners too."""
    u, v = _mesh(_GRID, _GRID)
    got = _log_density(c, u, v)
    if _is_derived(c):
        inside = (np.minimum(u, v) > 1e-4) & (np.maximum(u, v) < 1 - 1e-4)
        u, v, got = u[inside], v[inside], got[inside]
        got = np.where(np.isnan(got) & (np.abs(_slopes(c, u, v, "conditional")[2]) < _DENSITY_ROUNDING), 0.0, got)
    yield "log_density is a number, or −∞", u, v, np.where(got == -np.inf, 0.0, got), 0 * u


def _is_derived(c: Copula) -> bool:
    """Return whether `log_density` is the base class's, the logarithm of a derivative of the cdf."""
    return type(c).log_density is Copula.log_density


def _dependence(c: Copula) -> Iterator[Finding]:
    tau = float(_tau_of(c))
    # The first law is a tautology for a family without its own `tau`; the law of the samples is not.
    defined = float(_defined_tau(c))
    yield "tau() is 4 E[C(U, V)] − 1", 0.5, 0.5, tau, abs(tau - defined) - 2e-4
    u, v, sampled = map(np.asarray, _sample(c))
    # Five standard errors, each at most √(2 (1 − τ²)/n).
    error = np.sqrt(2 * max(1 - defined**2, 1e-4) / _SAMPLES)
    yield "samples have the τ", 0.5, 0.5, sampled, abs(sampled - defined) - 5 * error
    for name, draws in (("u", u), ("v", v)):
        steps = np.abs(np.sort(draws) - (np.arange(_SAMPLES) + 0.5) / _SAMPLES).max()
        yield f"samples of {name} are uniform (Kolmogorov–Smirnov)", 0.5, 0.5, steps, steps - 2.5 / np.sqrt(_SAMPLES)


def _gradients(c: Copula) -> Iterator[Finding]:
    for name in ("cdf", "conditional", "log_density"):
        u, v = _mesh(_CORNERS, _CORNERS)
        third = name == "log_density" and _is_derived(c)  # third derivatives of the cdf
        if third:
            u, v = np.clip(u, 1e-3, 1 - 1e-3), np.clip(v, 1e-3, 1 - 1e-3)
        total = np.sum(jax.tree.leaves(_slopes(c, u, v, name)), axis=0)
        if third:
            total = np.where(_slopes(c, u, v, "conditional")[2] > _DENSITY_ROUNDING, total, 0.0)
        yield f"gradients of {name} are finite", u, v, total, 0 * u


def _single_precision(c: Copula) -> Iterator[Finding]:
    u, v = _mesh(_INSIDE, _INSIDE)
    for name, method in (("cdf", _cdf), ("conditional", _conditional)):
        expected = method(c, u, v)
        with jax.enable_x64(False):
            single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), c)
            got = method(single, jnp.asarray(u, jnp.float32), jnp.asarray(v, jnp.float32))
        yield f"{name} in float32 keeps its type", u, v, got, float(got.dtype != np.float32)
        yield f"{name} in float32 is close to float64", u, v, got, np.abs(got - expected) - 2e-3


_LAWS = (
    *(_boundaries, _bounds, _conditionals, _inverses, _densities),
    *(_dependence, _gradients, _single_precision),
)


def _slopes(c: Copula, u: np.ndarray, v: np.ndarray, name: str) -> Any:
    """Differentiate a method in the parameters, in u and in v, at any number of points.

    Points are evaluated in blocks of one size, so that all laws share one program.
    """
    count, size = len(u), len(_INSIDE) ** 2
    filled = [np.pad(points, (0, -count % size), "edge") for points in (u, v)]
    blocks = [_all_slopes(c, *(points[at : at + size] for points in filled), name) for at in range(0, count, size)]
    return jax.tree.map(lambda *slopes: np.concatenate(slopes)[:count], *blocks)


@partial(jax.jit, static_argnames="name")
def _all_slopes(c: Copula, u: jax.Array, v: jax.Array, name: str) -> Any:
    slopes = jax.grad(lambda c, u, v: getattr(c, name)(u, v), argnums=(0, 1, 2))
    return jax.vmap(slopes, in_axes=(None, 0, 0))(c, u, v)


@jax.jit
def _sample(c: Copula) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw u and v, each (`_SAMPLES`,), and compute their Kendall's τ."""
    u, v = c.sample(jax.random.key(0), (_SAMPLES,))
    return u, v, kendall_tau(u, v, jnp.ones(u.shape, bool))
