"""Families of copulas by name."""

from collections.abc import Iterator

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


def as_family(family: str | type[Copula]) -> type[Copula]:
    """Find a family of copulas by its name, in any case, with or without hyphens; a class is returned as it is.

    Models, policies and sweeps record a family by its name, and find it again by this function. Every subclass of
    `Copula` that has been defined is found, except that the names of rcjax's own families stay theirs.

    Raises ValueError for an unknown name, and for a user's class with the name of one of rcjax's families.
    """
    known = {_spelling(one.__name__): one for one in (*FAMILIES, *NAMED_FAMILIES)}
    if isinstance(family, type) and issubclass(family, Copula):
        if known.get(_spelling(family.__name__), family) is not family:
            raise ValueError(
                f"copula: {family.__name__} is the name of a family of rcjax, and files record a family by its name: "
                f"give your class another name than {family.__name__}"
            )
        return family
    own = (one for one in _subclasses(Copula) if not one.__module__.startswith("rcjax."))
    known = {_spelling(one.__name__): one for one in own} | known
    if _spelling(str(family)) not in known:
        raise ValueError(
            f"unknown copula {family!r}; the families are {', '.join(sorted(known))}, or a subclass of "
            "rcjax.copulas.Copula, which must have been defined or imported before it is named"
        )
    return known[_spelling(str(family))]


def _spelling(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _subclasses(family: type[Copula]) -> Iterator[type[Copula]]:
    for child in family.__subclasses__():
        yield child
        yield from _subclasses(child)
