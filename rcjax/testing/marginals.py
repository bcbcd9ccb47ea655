"""The contract of marginal families: laws, and the check that reports the failed ones with their worst points."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.copulas.base import farthest
from rcjax.model.marginals import Marginal
from rcjax.testing.contract import Finding, changed_by_flattening, raise_failures, untraceable, worst

#: Inner points of (0, 1), also used as levels.
_INSIDE = np.array([0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99])
_GRID = np.concatenate([[1e-9, 1e-6, 1e-3], _INSIDE, 1 - np.array([1e-3, 1e-6, 1e-9])])
_ENDS = np.array([0.0, 1.0])

#: Ends and point masses that complete a smooth part to a distribution.
_MASSES = {"lowest": 0.2, "highest": 0.9, "mass_lowest": 0.1, "mass_highest": 0.2}

_STEP, _NODES = 1e-6, 64


def check_marginal(marginal: Marginal | type[Marginal]) -> None:
    """Raise an AssertionError with every failed law and the (x, parameters) at which it fails worst.

    A class is checked at its default parameters and at the ends of their supports. An infinite end is replaced by 300
    beyond the other end, or beyond 0. The laws:

    - `smooth_cdf`: within [0, 1], rising, from 0 to 1;
    - `smooth_density` is its slope, `smooth_log_density` the logarithm of that, `smooth_quantile` its inverse, and
      `smooth_mean_above` the integral of the quantiles;
    - with point masses at the ends: cdf, quantile and mean;
    - finite gradients; float32; jit, vmap and the pytree round trip.

    Args:
        marginal: an instance, of which the smooth part is checked, or a class.

    >>> from rcjax.model import Marginal, param
    >>> class Power(Marginal):
    ...     a: float = param(1.0, support=(0.5, 5.0))
    ...     def smooth_cdf(self, x):
    ...         return x**self.a if x < 1 else 1.0
    >>> try:
    ...     check_marginal(Power)
    ... except AssertionError as report:
    ...     print(str(report).splitlines()[1])
    - smooth_cdf(x) cannot be traced by jax: ValueError: The truth value of an array ... is ambiguous...
    """
    family = marginal if isinstance(marginal, type) else type(marginal)
    with jax.enable_x64(True):
        members = _members(marginal) if isinstance(marginal, type) else [_as_arrays(marginal)]
        failures = untraceable("smooth_cdf", members[0], {"x": jnp.ones((3, 2)) / 2}, "x (3, 2)")
        if not failures:
            failures = [text for law in _LAWS for text in worst(law, members, _where)] or _structure(family, members)
    raise_failures(family, "marginal", failures)


def _as_arrays(marginal: Any) -> Marginal:
    """The same smooth part on [0, 1], without point masses."""
    smooth = {name: jnp.asarray(getattr(marginal, name), float) for name in _parameters(marginal)}
    return type(marginal)(**smooth)


def _parameters(marginal: Any) -> list[str]:
    """Names of the fields of the smooth part."""
    common = {field.name for field in dataclasses.fields(Marginal)}  # pyright: ignore[reportArgumentType]
    return [field.name for field in dataclasses.fields(marginal) if field.name not in common]


def _members(family: type[Marginal]) -> list[Marginal]:
    default: Any = family()
    members = [default]
    for name, support in family.supports.items():
        members += [dataclasses.replace(default, **{name: end}) for end in farthest(support)]
    return [_as_arrays(member) for member in members]


def _where(member: Any, x: float) -> str:
    return ", ".join([f"x = {x:.10g}", *(f"{name} = {_figure(getattr(member, name))}" for name in _parameters(member))])


def _figure(value: Any) -> str:
    values = [f"{number:.6g}" for number in np.ravel(value)]
    return values[0] if np.ndim(value) == 0 else f"[{', '.join(values)}]"


@partial(jax.jit, static_argnames="method")
def _call(member: Any, x: Any, method: str) -> jax.Array:
    return getattr(member, method)(x)


def _of(member: Any, x: np.ndarray, method: str) -> np.ndarray:
    return np.asarray(_call(member, jnp.asarray(x), method))


def _cdf_laws(m: Any) -> Iterator[Finding]:
    got = _of(m, _GRID, "smooth_cdf")
    yield "smooth_cdf within [0, 1]", _GRID, got, np.maximum(-got, got - 1) - 1e-12
    yield "smooth_cdf rises", _GRID, got, -np.diff(got, prepend=0.0) - 1e-12
    # The floats nearest to 0 and to 1 bound what can be represented of the distribution.
    info = np.finfo(float)
    near = np.array([info.tiny, 1 - info.epsneg])
    beyond = _of(m, np.array([1e-300, 1 - 1e-15]), "smooth_cdf")
    first, last = _of(m, near, "smooth_cdf")
    # A power with a small exponent may leave some mass beyond them, but not a constant share.
    yield "smooth_cdf begins at 0", 0.0, first, first - max(0.1, beyond[0] * 1.01)
    yield "smooth_cdf ends at 1", 1.0, last, 0.5 if last < 0.9 and last < beyond[1] * 1.01 else 0.0


def _density_laws(m: Any) -> Iterator[Finding]:
    step = _STEP * np.minimum(_INSIDE, 1 - _INSIDE)
    slope = (_of(m, _INSIDE + step, "smooth_cdf") - _of(m, _INSIDE - step, "smooth_cdf")) / (2 * step)
    density = _of(m, _INSIDE, "smooth_density")
    rounding = 4 * np.finfo(float).eps / step
    yield (
        "smooth_density is the slope of smooth_cdf",
        _INSIDE,
        density,
        (np.abs(density - slope) - rounding - 1e-5 * (1 + np.abs(slope))),
    )
    yield "smooth_density ≥ 0", _INSIDE, density, -density
    at_ends = _of(m, _ENDS, "smooth_density")
    yield "smooth_density is 0 at 0 and 1", _ENDS, at_ends, np.abs(at_ends)
    log_density = _of(m, _INSIDE, "smooth_log_density")
    expected = np.exp(np.where(np.isneginf(log_density), -np.inf, log_density))
    yield (
        "smooth_log_density is the logarithm of smooth_density",
        _INSIDE,
        expected,
        (np.abs(expected - density) - 1e-9 * (1 + density)),
    )


def _quantile_laws(m: Any) -> Iterator[Finding]:
    x = _of(m, _INSIDE, "smooth_quantile")
    yield "smooth_quantile within [0, 1]", _INSIDE, x, np.maximum(-x, x - 1)
    back, density = _of(m, x, "smooth_cdf"), _of(m, x, "smooth_density")
    # A rounding error of x changes G by the error times the density; next to the ends there are no floats between.
    info = np.finfo(float)
    inside = (x > 4 * info.tiny) & (x < 1 - 4 * info.epsneg)
    allowed = 1e-9 + 8 * info.eps * x * np.nan_to_num(density, posinf=1e300)
    excess = np.where(inside, np.abs(back - _INSIDE) - allowed, 0.0)
    yield "smooth_cdf(smooth_quantile(z)) = z, with x = z,", _INSIDE, back, excess
    ends = _of(m, _ENDS, "smooth_quantile")
    yield "smooth_quantile at 0 and 1", _ENDS, ends, np.abs(ends - _ENDS)


def _mean_laws(m: Any) -> Iterator[Finding]:
    points = np.concatenate([[0.0], _INSIDE, [1.0]])
    got = _of(m, points, "smooth_mean_above")
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    # ∫ₓ¹ t dG = x (1 − G(x)) + ∫ₓ¹ (1 − G), integrated between quantiles, which divide the steep parts.
    levels = 1 / (1 + np.exp(-np.linspace(-30.0, 30.0, 121)))
    edges = np.unique(np.concatenate([points, np.clip(_of(m, levels, "smooth_quantile"), 0.0, 1.0)]))
    width = np.diff(edges)
    at = edges[:-1, None] + width[:, None] * (nodes + 1) / 2
    pieces = width * ((1 - _of(m, at, "held_cdf")) @ weights) / 2
    tail = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)[np.searchsorted(edges, points)]
    expected = points * (1 - _of(m, points, "held_cdf")) + tail
    yield "smooth_mean_above is ∫ₓ¹ t dG", points, got, np.abs(got - expected) - 1e-6


def _mass_laws(m: Any) -> Iterator[Finding]:
    completed = dataclasses.replace(m, **{name: jnp.asarray(value) for name, value in _MASSES.items()})
    low, high, bottom, top = _MASSES.values()
    below = _of(completed, np.array([low - 1e-9, low, high - 1e-12, high]), "cdf")
    expected = np.array([0.0, bottom, below[2], 1.0])
    where = np.array([low, low, high, high])
    yield "cdf jumps by the masses at the ends", where, below, np.abs(below - expected) - 1e-3
    inner = _of(completed, low + (high - low) * _INSIDE, "cdf")
    scaled = bottom + (1 - bottom - top) * _of(m, _INSIDE, "smooth_cdf")
    yield "cdf is that of the smooth part between the masses", _INSIDE, inner, np.abs(inner - scaled) - 1e-9
    flat = _of(completed, np.array([bottom / 2, 1 - top / 2]), "quantile")
    yield "quantile is flat at the masses", np.array([0.0, 1.0]), flat, np.abs(flat - [low, high]) - 1e-12
    mean = float(_of(completed, np.array(-1.0), "mean_above"))
    smooth = float(_of(m, np.array(0.0), "smooth_mean_above"))
    total = bottom * low + top * high + (1 - bottom - top) * (low + (high - low) * smooth)
    yield "mean_above of everything is the mean", 0.0, mean, abs(mean - total) - 1e-9


def _gradient_laws(m: Any) -> Iterator[Finding]:
    for name, points in (
        *(("held_cdf", np.concatenate([_ENDS, _INSIDE])), ("smooth_log_density", _INSIDE)),
        *(("smooth_quantile", _INSIDE), ("smooth_mean_above", _INSIDE)),
    ):
        if name == "smooth_log_density":
            points = points[np.isfinite(_of(m, points, name))]
        if not len(points):
            continue
        slopes = _slopes(m, jnp.asarray(points), name)
        total = np.sum([np.asarray(slope) for slope in slopes], axis=0)
        yield f"gradients of {name} are finite", points, total, 0 * points


@partial(jax.jit, static_argnames="method")
def _slopes(m: Any, x: jax.Array, method: str) -> Any:
    """Differentiate a method in each parameter, summed over the entries of its array, and in x; (n,) each."""

    def single(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return getattr(dataclasses.replace(m, **parameters), method)(x)

    parameters = {name: getattr(m, name) for name in _parameters(m)}
    in_parameters, in_x = jax.vmap(jax.grad(single, argnums=(0, 1)), in_axes=(None, 0))(parameters, x)
    return [*(slope.reshape(len(x), -1).sum(1) for slope in in_parameters.values()), in_x]


def _single_precision(m: Any) -> Iterator[Finding]:
    expected = _of(m, _INSIDE, "smooth_cdf")
    with jax.enable_x64(False):
        single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), m)
        got = _call(single, jnp.asarray(_INSIDE, jnp.float32), "smooth_cdf")
    yield "smooth_cdf in float32 keeps its type", _INSIDE, got, float(got.dtype != np.float32)
    yield "smooth_cdf in float32 is close to float64", _INSIDE, got, np.abs(np.asarray(got) - expected) - 2e-3


_LAWS = (
    *(_cdf_laws, _density_laws, _quantile_laws, _mean_laws),
    *(_mass_laws, _gradient_laws, _single_precision),
)


def _structure(family: type[Marginal], members: Sequence[Marginal]) -> list[str]:
    """Check the laws of the class rather than of a point: jit, vmap and the pytree round trip."""
    failures = changed_by_flattening(family, members[0])
    batch = jax.tree.map(lambda *parts: jnp.stack([jnp.asarray(part) for part in parts]), *members)
    x = jnp.asarray(_INSIDE)
    for method in ("smooth_cdf", "smooth_density"):
        rows = jax.vmap(lambda m, method=method: getattr(m, method)(x))(batch)
        alone = getattr(members[0], method)(x)
        if not np.allclose(rows[0], alone, rtol=1e-9, atol=1e-12, equal_nan=True):
            failures.append(f"vmap changes {method}")
    return failures
