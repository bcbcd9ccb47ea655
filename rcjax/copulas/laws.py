"""The laws that hold of every copula, each at many points: what `rcjax.testing.check_copula` goes through.

A law is a function of a copula; it yields what it looked at, what the copula gives there, and by how much that is
beyond what the law allows.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.kendall import kendall_tau
from rcjax.copulas.base import Copula, tau_by_quadrature

#: Ranks inside, where nothing is extreme.
INSIDE = np.array([0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98])

_GRID = np.concatenate([[1e-9, 1e-6, 1e-3], INSIDE, 1 - np.array([1e-3, 1e-6, 1e-9])])

_CORNERS = np.array([1e-6, 0.5, 1 - 1e-6])

#: Between lines so near to each other no density that is below 0 for long goes unseen.
_LINES = np.concatenate([[1e-4, 1e-3], np.arange(1, 96) / 96, 1 - np.array([1e-3, 1e-4])])

#: Where C(q, q)/q is looked at on its way to the tail dependence.
_WAY = 10.0 ** -np.arange(2, 10)

_SAMPLES = 2000

#: A density of which rounding leaves nothing, where it is a derivative of a cdf.
NOTHING = 1e-8

_BLOCK = 256

#: What a law yields: (its name, u, v, what the copula gives, by how much that is beyond what the law allows).
Finding = tuple[str, ArrayLike, ArrayLike, ArrayLike, ArrayLike]

Law = Callable[[Copula], Iterable[Finding]]


def _compiled(method: str) -> Callable[..., Any]:
    """One program for each method of a family, whatever the parameters."""

    @jax.jit
    def call(copula: Copula, *arguments: ArrayLike) -> Any:
        return getattr(copula, method)(*arguments)

    return call


def _by_block(method: str) -> Callable[..., Any]:
    """One program also for any number of points, which go through it in blocks: compiling is most of the time."""
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
METHODS = {
    name: _by_block(name) for name in ("cdf", "conditional", "conditional_on_v", "log_density", "inverse_conditional")
}
_cdf, _conditional, _conditional_on_v, _log_density, _inverse = METHODS.values()

tau_of, _tails = map(_compiled, ("tau", "tail_dependence"))

_defined_tau = jax.jit(tau_by_quadrature)


def mesh(first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
    """The two coordinates of all pairs of points, each in a row."""
    return (points.ravel() for points in np.meshgrid(first, second, indexing="ij"))


def _boundaries(c: Copula) -> Iterator[Finding]:
    ends = np.array([1e-12, 1 - 1e-12])
    for name, u, v, expected in (
        ("C(u, 0) = 0", _GRID, 0 * _GRID + ends[0], 0 * _GRID),
        ("C(0, v) = 0", 0 * _GRID + ends[0], _GRID, 0 * _GRID),
        ("C(u, 1) = u", _GRID, 0 * _GRID + ends[1], _GRID),
        ("C(1, v) = v", 0 * _GRID + ends[1], _GRID, _GRID),
    ):
        got = np.asarray(_cdf(c, u, v))
        yield name, u, v, got, np.abs(got - expected) - 1e-9


def _bounds(c: Copula) -> Iterator[Finding]:
    u, v = mesh(_GRID, _GRID)
    got = np.asarray(_cdf(c, u, v))
    yield "C(u, v) ≤ min(u, v)", u, v, got, got - np.minimum(u, v) - 1e-12
    yield "C(u, v) ≥ u + v − 1", u, v, got, np.maximum(u + v - 1, 0) - got - 1e-12
    side = len(_GRID)
    cells = np.diff(np.diff(got.reshape(side, side), axis=0), axis=1)
    u, v = mesh(_GRID[1:], _GRID[1:])
    yield "2-increasing (the volume of the cell below)", u, v, cells.ravel(), -cells.ravel() - 1e-12
    u, v = mesh(_LINES, _LINES)
    cells = np.diff(np.diff(np.asarray(_cdf(c, u, v)).reshape(len(_LINES), -1), axis=0), axis=1).ravel()
    u, v = mesh(_LINES[1:], _LINES[1:])
    yield "2-increasing (the volume of the narrow cell below)", u, v, cells, -cells - 1e-12


def _symmetry(c: Copula) -> Iterator[Finding]:
    if not c.exchangeable:
        return
    # The conditionals are held to the slopes of the cdf.
    u, v = mesh(INSIDE, INSIDE)
    got = np.asarray(_cdf(c, u, v))
    yield "exchangeable: C(u, v) = C(v, u)", u, v, got, np.abs(got - np.asarray(_cdf(c, v, u))) - 1e-9


def _tail_limits(c: Copula) -> Iterator[Finding]:
    claims = np.stack(_tails(c))
    yield "tail dependence within [0, 1]", 0.5, 0.5, claims, np.maximum(-claims, claims - 1)
    below = np.asarray(_cdf(c, _WAY, _WAY)) / _WAY
    above = (2 * _WAY - 1 + np.asarray(_cdf(c, 1 - _WAY, 1 - _WAY))) / _WAY
    for side, claim, way in (("lower", claims[0], below), ("upper", claims[1], above)):
        end = _WAY[-1] if side == "lower" else 1 - _WAY[-1]
        limit, rest = _limit(way)
        if not (claim < 0 or claim > 1):  # else it has been said
            name = f"tail dependence ({side}) is the limit of the diagonal"
            yield name, end, end, claim, np.abs(claim - limit) - 2e-3 - 3 * rest


def _limit(way: np.ndarray) -> tuple[float, float]:
    """(the limit of a sequence whose steps shrink by one ratio, by Aitken's method; how far off it may be)."""
    before, last = np.diff(way)[-2:]
    if abs(last) < 1e-6 or abs(last) > 2 * abs(before):  # it has arrived; or it jumps, and where it is counts
        return way[-1], 0.0
    ratio = max(last / before, 0.0)
    if ratio > 0.9:  # so slow that it may go anywhere yet
        return way[-1], 1.0
    rest = last * ratio / (1 - ratio)
    return way[-1] + rest, abs(rest)


def _conditionals(c: Copula) -> Iterator[Finding]:
    u, v = mesh(_GRID, _GRID)
    side = len(_GRID)
    inside_u, inside_v = mesh(INSIDE, INSIDE)
    _, along_u, along_v = _slopes(c, inside_u, inside_v, "cdf")
    for name, method, axis, slope in (
        ("conditional", _conditional, 1, along_u),
        ("conditional_on_v", _conditional_on_v, 0, along_v),
    ):
        got = np.asarray(method(c, u, v))
        yield f"{name} within [0, 1]", u, v, got, np.maximum(-got, got - 1) - 1e-9
        fall = -np.diff(got.reshape(side, side), axis=axis, prepend=0.0).ravel()
        yield f"{name} monotone", u, v, got, fall - 1e-9
        got = np.asarray(method(c, inside_u, inside_v))
        yield f"{name} is the slope of the cdf", inside_u, inside_v, got, np.abs(got - slope) - 1e-6


def _inverses(c: Copula) -> Iterator[Finding]:
    u, p = mesh(_GRID[1:-1], INSIDE)
    v = np.asarray(_inverse(c, u, p))
    yield "inverse_conditional within [0, 1]", u, p, v, np.maximum(-v, v - 1)
    got = np.asarray(_conditional(c, u, v))
    # A rounding of v moves h by as much times the density.
    inside = np.clip(v, 1e-300, 1 - 1e-16)
    slack = 1e-8 + 8 * np.finfo(float).eps * np.exp(np.minimum(_log_density(c, u, inside), 700.0))
    yield "conditional(u, inverse_conditional(u, p)) = p, with v = p,", u, p, got, np.abs(got - p) - slack


def _densities(c: Copula) -> Iterator[Finding]:
    u, v = mesh(INSIDE, INSIDE)
    _, _, expected = _slopes(c, u, v, "conditional")
    got = np.exp(_log_density(c, u, v))
    # A density below 0 has no logarithm.
    yield "∂²C/∂u∂v ≥ 0", u, v, expected, -expected - 1e-6
    got = np.where(is_derived(c) & (np.abs(expected) < NOTHING), np.nan_to_num(got), got)
    yield "exp(log_density) is ∂²C/∂u∂v", u, v, got, np.abs(got - expected) - 1e-5 * (1 + np.abs(expected))
    yield from _log_densities(c)
    # Between quantiles of V given u, in which even a ridge is smooth: the mass is that between their levels.
    nodes, weights = np.polynomial.legendre.leggauss(16)
    levels = np.array([0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])
    ends = np.asarray(_inverse(c, INSIDE[:, None], levels))
    low, width = ends[:, :-1, None], np.diff(ends)[..., None]
    at = low + width * (nodes + 1) / 2
    density = np.exp(_log_density(c, np.broadcast_to(INSIDE[:, None, None], at.shape), at))
    mass = (density * width * weights / 2).sum((-1, -2))
    name = "the density between quantiles 0.01 and 0.99 of V has mass 0.98"
    yield name, INSIDE, 0.5, mass, np.abs(mass - 0.98) - 1e-4


def _log_densities(c: Copula) -> Iterator[Finding]:
    """The logarithm is a number, or −∞, next to the corners too."""
    u, v = mesh(_GRID, _GRID)
    got = np.asarray(_log_density(c, u, v))
    if is_derived(c):
        inside = (np.minimum(u, v) > 1e-4) & (np.maximum(u, v) < 1 - 1e-4)
        u, v, got = u[inside], v[inside], got[inside]
        got = np.where(np.isnan(got) & (np.abs(_mixed(c, u, v)) < NOTHING), 0.0, got)
    yield "log_density is a number, or −∞", u, v, np.where(got == -np.inf, 0.0, got), 0 * u


def is_derived(c: Copula) -> bool:
    """Whether log_density is the base class's: the logarithm of a derivative of the cdf."""
    return type(c).log_density is Copula.log_density


def _dependence(c: Copula) -> Iterator[Finding]:
    tau = float(tau_of(c))
    # Of a family without a τ of its own the first law tells nothing; that of the samples does.
    defined = float(_defined_tau(c))
    yield "tau() is 4 E[C(U, V)] − 1", 0.5, 0.5, tau, abs(tau - defined) - 2e-4
    u, v = (np.asarray(z) for z in _sample(c, jax.random.key(0)))
    # Five standard errors; that of Kendall's τ is at most √(2 (1 − τ²)/n).
    sampled, error = float(_sampled_tau(u, v)), np.sqrt(2 * max(1 - defined**2, 1e-4) / _SAMPLES)
    yield "samples have the τ", 0.5, 0.5, sampled, abs(sampled - defined) - 5 * error
    for name, draws in (("u", u), ("v", v)):
        steps = np.abs(np.sort(draws) - (np.arange(_SAMPLES) + 0.5) / _SAMPLES).max()
        yield f"samples of {name} are uniform (Kolmogorov–Smirnov)", 0.5, 0.5, steps, steps - 2.5 / np.sqrt(_SAMPLES)


def _gradients(c: Copula) -> Iterator[Finding]:
    for name in ("cdf", "conditional", "log_density"):
        u, v = mesh(_CORNERS, _CORNERS)
        third = name == "log_density" and is_derived(c)  # derivatives of third order of a cdf
        if third:
            u, v = np.clip(u, 1e-3, 1 - 1e-3), np.clip(v, 1e-3, 1 - 1e-3)
        total = np.sum(jax.tree.leaves(_slopes(c, u, v, name)), axis=0)
        if third:
            total = np.where(_slopes(c, u, v, "conditional")[2] > NOTHING, total, 0.0)
        yield f"gradients of {name} are finite", u, v, total, 0 * u


def _single_precision(c: Copula) -> Iterator[Finding]:
    u, v = mesh(INSIDE, INSIDE)
    for name, method in (("cdf", _cdf), ("conditional", _conditional)):
        expected = np.asarray(method(c, u, v))
        with jax.enable_x64(False):
            single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), c)
            got = method(single, jnp.asarray(u, jnp.float32), jnp.asarray(v, jnp.float32))
            same = got.dtype == np.float32
        yield f"{name} in float32 keeps its type", u, v, np.asarray(got), 0.0 if same else 1.0
        yield f"{name} in float32 is close to float64", u, v, np.asarray(got), np.abs(np.asarray(got) - expected) - 2e-3


LAWS = (
    *(_boundaries, _bounds, _symmetry, _conditionals, _inverses, _densities),
    *(_dependence, _tail_limits, _gradients, _single_precision),
)


def _slopes(c: Copula, u: np.ndarray, v: np.ndarray, name: str) -> Any:
    """The derivatives of a method in the parameters, in u and in v: one program for all laws that need some of them."""
    filled = (np.pad(points, (0, len(INSIDE) ** 2 - len(points)), "edge") for points in (u, v))
    return jax.tree.map(lambda slope: np.asarray(slope)[: len(u)], _all_slopes(c, *filled, name))


@partial(jax.jit, static_argnames="name")
def _all_slopes(c: Copula, u: jax.Array, v: jax.Array, name: str) -> Any:
    def value(c: Copula, u: jax.Array, v: jax.Array) -> jax.Array:
        return getattr(c, name)(u, v)

    return jax.vmap(jax.grad(value, argnums=(0, 1, 2)), in_axes=(None, 0, 0))(c, u, v)


def _mixed(c: Copula, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """∂²C/∂u∂v at any number of points, in blocks of those that `_slopes` takes."""
    size = len(INSIDE) ** 2
    blocks = [_slopes(c, u[at : at + size], v[at : at + size], "conditional")[2] for at in range(0, len(u), size)]
    return np.concatenate(blocks)


@jax.jit
def _sample(c: Copula, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return c.sample(key, (_SAMPLES,))


@jax.jit
def _sampled_tau(u: jax.Array, v: jax.Array) -> jax.Array:
    return kendall_tau(u, v, jnp.ones(u.shape, bool))
