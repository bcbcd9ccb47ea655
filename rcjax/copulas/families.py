"""Families of copulas by name."""

from collections.abc import Iterator
from typing import Any

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
)


def as_family(name: str | type[Copula]) -> type[Copula]:
    """Find a copula class by name, in any case and with or without hyphens; ValueError lists the known families.

    Every subclass of `Copula` that has been defined is known, including the user's.
    """
    if isinstance(name, type) and issubclass(name, Copula):
        return name
    no_families = ("ClosedForm", "Exchangeable", "RadialForm", "Rotation")
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


#: The families that `compare_copulas` compares by default.
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
#: The families that `compare_copulas` compares only by name.
NAMED_FAMILIES: tuple[type[Copula], ...] = (BB1, BB7, Tawn, Plackett, FGM, NegativeClayton)
