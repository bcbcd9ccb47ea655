"""Rotations of any copula: survival versions, and versions for negative dependence."""

import dataclasses
import inspect
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from rcjax.copulas.base import ClosedForm, Copula, TailDependence, Unit


class Rotation(ClosedForm):
    """A copula turned by 90, 180 or 270 degrees: the law of (1 − U, V), (1 − U, 1 − V) or (U, 1 − V).

    The class statement names the family, and the rotation has its parameters. 180 degrees is the survival copula.

    >>> from rcjax.copulas import Clayton
    >>> class NegativeClayton(Rotation, of=Clayton, degrees=90):
    ...     pass
    >>> float(NegativeClayton(2.0).tau())
    -0.5
    """

    _of: ClassVar[type[Copula]]
    _degrees: ClassVar[int]

    def __init_subclass__(cls, *, of: type[Copula], degrees: int, **kwargs: Any) -> None:
        if degrees not in (90, 180, 270):
            raise ValueError(f"degrees is {degrees}; a copula turns by 90, 180 or 270")
        cls._of, cls._degrees = of, degrees
        cls.exchangeable = degrees == 180 and of.exchangeable
        annotations = dict(inspect.get_annotations(cls))
        for field in dataclasses.fields(of):  # pyright: ignore[reportArgumentType]
            if field.name not in annotations:
                annotations[field.name] = field.type
                setattr(cls, field.name, dataclasses.field(default=field.default, metadata=field.metadata))
        cls.__annotations__ = annotations
        super().__init_subclass__(**kwargs)

    @property
    def _base(self) -> Copula:
        leaves, _ = jax.tree.flatten(self)
        return jax.tree.unflatten(jax.tree.structure(self._of()), leaves)

    def prepared(self, u: Unit) -> Unit:
        """u as the family prepares it."""
        return self._base.prepared(u)

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """(P(U ≤ u, V ≤ v), P(U > u, V > v))."""
        below, above = self._base.two_sided_cdf(*self._turn(u, v))
        if self._degrees == 180:
            return above, below
        if self._degrees == 270:
            u, v = v, u
        lower = _difference(v.value, below, u.value, above)
        return lower, _difference(u.complement, below, v.complement, above)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h(v given u) and its complement."""
        h = self._base.two_sided_conditional(*self._turn(u, v))
        return h if self._degrees == 90 else h.flipped

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """∂C/∂v and its complement."""
        h = self._base.two_sided_conditional_on_v(*self._turn(u, v))
        return h if self._degrees == 270 else h.flipped

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c(u, v)."""
        return self._base.two_sided_log_density(*self._turn(u, v))

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """The v with h(v given u) = p, and its complement."""
        v = self._base.two_sided_inverse(*self._turn(u, p))
        return v if self._degrees == 90 else v.flipped

    def spearman(self) -> jax.Array:
        """Spearman's ρ of the family, negated for 90 and 270 degrees."""
        return self._base.spearman() if self._degrees == 180 else -self._base.spearman()

    def tail_dependence(self) -> TailDependence:
        """The family's coefficients, exchanged, for 180 degrees; else numerical ones at the other two corners."""
        if self._degrees != 180:
            return super().tail_dependence()
        lower, upper = self._base.tail_dependence()
        return TailDependence(upper, lower)

    def tau(self) -> jax.Array:
        """Kendall's τ of the family, negated for 90 and 270 degrees."""
        return self._base.tau() if self._degrees == 180 else -self._base.tau()

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """The rotation of the family's `from_tau`, with −τ for 90 and 270 degrees."""
        tau = cls._within_reach(tau)
        turned = cls._of.from_tau(tau if cls._degrees == 180 else -tau)
        return jax.tree.unflatten(jax.tree.structure(cls()), jax.tree.leaves(turned))

    def _turn(self, u: Unit, v: Unit) -> tuple[Unit, Unit]:
        return u.flipped if self._degrees < 270 else u, v.flipped if self._degrees > 90 else v


def _difference(whole: jax.Array, part: jax.Array, other_whole: jax.Array, other_part: jax.Array) -> jax.Array:
    """The difference whole − part = other_whole − other_part, at least 0, by the smaller whole, which rounds least."""
    difference = jnp.where(whole <= other_whole, whole - part, other_whole - other_part)
    return difference + lax.stop_gradient(jnp.maximum(-difference, 0.0))
