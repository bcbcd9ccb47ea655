"""The contract of a copula family, as a check that says what fails and where.

    from rcjax.testing import check_copula

    check_copula(MyFamily)         # at its default, the ends of its support, and several τ
    check_copula(MyFamily(0.7))    # at one parameter

The families of rcjax are tested with nothing weaker.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.copulas import Copula
from rcjax.copulas.base import farthest
from rcjax.copulas.laws import INSIDE, LAWS, METHODS, NOTHING, Law, is_derived, mesh, tau_of

_TAUS = np.array([-0.5, 0.2, 0.7, 0.95])


def check_copula(copula: Copula | type[Copula]) -> None:
    """AssertionError, with every law that fails and the (u, v, parameters) where it fails worst, or nothing.

    copula: an instance (also a batch, with parameters of any shape) or a class, which is checked at its default
    parameters, at the ends of their support (where there is none, as far as `fit` goes: 300 beyond the other end, or
    beyond 0), and at the members with τ of −0.5, 0.2, 0.7, 0.95 and ±0.98 as far as it has them. The laws: boundary
    conditions, Fréchet's bounds, 2-increasing; conditionals within [0, 1], monotone, and the slopes of the cdf; their
    inverse; the density as ∂²C, of mass one, and a number near the corners too; τ as defined and as sampled;
    `from_tau`; tail dependence as the limit of the cdf; C(u, v) = C(v, u) where `exchangeable` says so; finite
    gradients near the corners; float32; jit, vmap and the pytree round trip.

    Of a family that is only a cdf, density and inverse are derivatives and roots of it: where the density is next to
    nothing, rounding has its sign and its logarithm, and nothing is asked of these.

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
        failures = _untraceable(family() if isinstance(copula, type) else _unstack(copula)[0])
        if not failures:
            members = _members(family) if isinstance(copula, type) else _unstack(copula)
            failures = [text for law in LAWS for text in _worst(law, members)] or _structure(family, members)
    if failures:
        raise AssertionError(f"{family.__name__} is no copula as it stands:\n" + "\n".join(f"- {f}" for f in failures))


def _members(family: type[Copula]) -> list[Copula]:
    """Members of the family from all over its support."""
    default: Any = family()
    members = [default]
    for name, support in family.supports.items():
        ends = farthest(support) if name in family.free else [end for end in support if np.isfinite(end)]
        members += [dataclasses.replace(default, **{name: end}) for end in ends]
    if family.free:
        # As many as `_structure` asks for: operations of one shape compile once.
        wanted = np.concatenate([_TAUS, [-family.MAX_TAU, family.MAX_TAU]])
        taus = np.pad(wanted, (0, len(members)), "edge")
        members += _unstack(family.from_tau(jnp.asarray(taus)))[: len(wanted)]
    return [jax.tree.map(lambda leaf: jnp.asarray(leaf, float), member) for member in members]


def _unstack(copula: Copula) -> list[Copula]:
    leaves, structure = jax.tree.flatten(copula)
    columns = [np.ravel(column) for column in np.broadcast_arrays(*map(np.asarray, leaves))] if leaves else []
    points = zip(*columns, strict=True) if columns else [()]
    return [jax.tree.unflatten(structure, [jnp.asarray(value, float) for value in point]) for point in points]


def _worst(law: Law, members: Sequence[Copula]) -> Iterator[str]:
    """A line of text for each part of the law that fails: the first member for which it does, at its worst point."""
    told = set()
    for member in members:
        for name, u, v, got, bound in law(member):
            u, v, got, excess = np.broadcast_arrays(*(np.asarray(x, float) for x in (u, v, got, bound)))
            excess = np.where(np.isfinite(got), excess, np.inf)
            if excess.max() > 0 and name not in told:
                told.add(name)
                at = np.unravel_index(excess.argmax(), excess.shape)
                figure = f"{got[at]:.10g}, {excess[at]:.2g} beyond what is allowed"
                yield f"{name} fails at {_where(u[at], v[at], member)}: {figure}"


def _where(u: float, v: float, member: Any) -> str:
    values = [f"{f.name} = {float(getattr(member, f.name)):.6g}" for f in dataclasses.fields(member)]
    return ", ".join([f"u = {u:.10g}", f"v = {v:.10g}", *values])


def _untraceable(member: Copula) -> list[str]:
    """What fails before any law can be looked at: no cdf, or one that jax cannot trace or broadcast."""
    try:
        shape = jax.eval_shape(lambda c, u, v: c.cdf(u, v), member, jnp.ones((3, 1)) / 2, jnp.ones(2) / 2).shape
    except Exception as problem:  # whatever the user's code raises belongs into the report
        return [f"cdf(u, v) cannot be traced by jax: {type(problem).__name__}: {str(problem).splitlines()[0]}"]
    return [] if shape == (3, 2) else [f"cdf(u, v) of shapes (3, 1) and (2,) has shape {shape}; it must have (3, 2)"]


def _structure(family: type[Copula], members: Sequence[Copula]) -> list[str]:
    """jit, vmap, the pytree round trip, `from_tau`: laws of the class rather than of a point."""
    failures = []
    leaves, structure = jax.tree.flatten(members[0])
    again = jax.tree.unflatten(structure, leaves)
    if type(again) is not family or jax.tree.leaves(again) != leaves:
        failures.append("flattening and unflattening it as a pytree gives something else")
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *members)
    u, v = (jnp.asarray(points) for points in mesh(INSIDE, INSIDE))
    for name in ("cdf", "conditional", "log_density"):
        for member, row in zip(members, _batched(batch, u, v, name), strict=True):
            # The first one as it stands, the others compiled: that takes a fraction of the time.
            alone = getattr(member, name)(u, v) if member is members[0] else METHODS[name](member, u, v)
            if name == "log_density" and is_derived(member):
                row, alone = np.exp(row), np.exp(alone)
                row, alone = (np.where(np.nan_to_num(x) < NOTHING, 0.0, x) for x in (row, alone))
            if not np.allclose(row, alone, rtol=1e-6, atol=1e-9, equal_nan=True):
                worst = int(np.nanargmax(np.abs(np.asarray(row) - np.asarray(alone))))
                failures.append(f"vmap and jit change {name}, at {_where(float(u[worst]), float(v[worst]), member)}")
    if len(family.supports) == len(family.free) == 1:
        taus = np.array([float(tau_of(member)) for member in members])
        roundtrip = np.asarray(_taus(family.from_tau(jnp.asarray(taus))))
        for member, tau, again in zip(members, taus, roundtrip, strict=True):
            if abs(tau) <= family.MAX_TAU and not abs(again - tau) <= 1e-3:
                failures.append(f"from_tau({tau:.6g}) has τ {again:.6g}, though {member} has {tau:.6g}")
    return failures


@partial(jax.jit, static_argnames="name")
def _batched(copulas: Copula, u: jax.Array, v: jax.Array, name: str) -> jax.Array:
    return jax.vmap(lambda c: getattr(c, name)(u, v))(copulas)


@jax.jit
def _taus(copulas: Copula) -> jax.Array:
    return jax.vmap(lambda c: c.tau())(copulas)
