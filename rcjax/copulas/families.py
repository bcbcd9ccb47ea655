"""Families of copulas by name, the candidates of `copula="auto"`, and `OneOf`, a batch whose pairs differ in family."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from rcjax.copulas import (
    AMH,
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
    NegativeGumbel,
    NegativeJoe,
    Plackett,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
    SurvivalJoe,
    Tawn,
)
from rcjax.copulas.base import ClosedForm, TailDependence, Unit


def as_family(name: str | type[Copula]) -> type[Copula]:
    """Find a copula class by name, in any case and with or without hyphens; ValueError lists the known families.

    Every subclass of `Copula` that has been defined is known, including the user's.
    """
    if isinstance(name, type) and issubclass(name, Copula):
        return name
    no_families = ("ClosedForm", "Exchangeable", "RadialForm", "OneOf", "Rotation")
    known = sorted(_subclasses(Copula), key=lambda family: not family.__module__.startswith("rcjax."))
    families = {family.__name__.lower(): family for family in known if family.__name__ not in no_families}
    key = str(name).lower().replace("_", "").replace("-", "")
    if key not in families:
        raise ValueError(
            f"unknown copula {name!r}; the families are {', '.join(sorted(families))}, or a subclass of "
            "rcjax.copulas.Copula, which must have been defined or imported before it is named"
        )
    return families[key]


def _subclasses(cls: type) -> Iterator[Any]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


#: The default candidates. Independence comes first, since the first of equal scores wins.
FAMILIES: tuple[type[Copula], ...] = (
    Independence,
    Gumbel,
    SurvivalGumbel,
    Clayton,
    SurvivalClayton,
    Frank,
    Joe,
    SurvivalJoe,
    Gaussian,
    StudentT,
)
#: The families that compete only where they are named.
NAMED_FAMILIES: tuple[type[Copula], ...] = (
    BB1,
    BB7,
    Tawn,
    Plackett,
    AMH,
    FGM,
    NegativeClayton,
    NegativeGumbel,
    NegativeJoe,
)


class OneOf(ClosedForm):
    """The member at `index` of a tuple of copulas: one batched pytree of pairs that have different families.

    Every member is evaluated and one result is kept, as `vmap` of a switch would do.

    >>> from rcjax.copulas import Clayton, Frank
    >>> float(OneOf(1, (Frank(5.0), Clayton(2.0))).tau())
    0.5
    """

    index: jax.Array = dataclasses.field(default=0, metadata={"free": False})  # pyright: ignore[reportAssignmentType]
    members: tuple[Copula, ...] = dataclasses.field(default=(), metadata={"free": False})

    @property
    def exchangeable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every member is exchangeable."""
        return all(member.exchangeable for member in self.members)

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """(P(U ≤ u, V ≤ v), P(U > u, V > v))."""
        return self._choose([member.two_sided_cdf(u, v) for member in self.members])

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h(v given u) and its complement."""
        return self._choose([member.two_sided_conditional(u, v) for member in self.members])

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """∂C/∂v and its complement."""
        return self._choose([member.two_sided_conditional_on_v(u, v) for member in self.members])

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c(u, v)."""
        return self._choose([member.two_sided_log_density(u, v) for member in self.members])

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """The v with h(v given u) = p, and its complement."""
        return self._choose([member.two_sided_inverse(u, p) for member in self.members])

    def spearman(self) -> jax.Array:
        """Spearman's ρ."""
        return self._choose([member.spearman() for member in self.members])

    def tail_dependence(self) -> TailDependence:
        """λ_L and λ_U."""
        return self._choose([member.tail_dependence() for member in self.members])

    def tau(self) -> jax.Array:
        """Kendall's τ."""
        return self._choose([member.tau() for member in self.members])

    def _choose(self, values: list[Any]) -> Any:
        def select(*parts: jax.Array) -> jax.Array:
            chosen = parts[0]
            for number, value in enumerate(parts[1:], start=1):
                chosen = jnp.where(jnp.asarray(self.index) == number, value, chosen)
            return chosen

        return jax.tree.map(select, *values)
