"""Families of copulas by name, and those that `copula="auto"` chooses from."""

from collections.abc import Iterator
from typing import Any

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
)


def as_family(name: str | type[Copula]) -> type[Copula]:
    """The copula class of a name, in any case and with or without hyphens; ValueError names the families there are.

    Every subclass of `Copula` that has been defined is known by its name, the user's own included.
    """
    if isinstance(name, type) and issubclass(name, Copula):
        return name
    families = {
        c.__name__.lower(): c for c in _subclasses(Copula) if c.__name__ not in ("ClosedForm", "OneOf", "Rotation")
    }
    key = str(name).lower().replace("_", "").replace("-", "")
    if key not in families:
        raise ValueError(
            f"unknown copula {name!r}; the families are {', '.join(sorted(families))}, or a subclass of "
            "rcjax.copulas.Copula, which must have been defined or imported before it is named"
        )
    return families[key]


def _subclasses(cls) -> Iterator[Any]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


#: The families that compete where none is named. Independence comes first: of two equal scores the first one wins.
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
