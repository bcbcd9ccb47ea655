"""The default tier: it leaves out rows of tables of tests, and most of Hypothesis's examples."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: Whether this run is of everything (tests/conftest.py).
EVERYTHING = [False]


def examples(most: int) -> int:
    """Return the number of Hypothesis's examples: a quarter of the most, unless all tests run."""
    return most if EVERYTHING[0] else max(3, most // 4)


def thorough(rows: Iterable[Any], where: Callable[[Any], bool]) -> list[Any]:
    """The rows as parameters of a test, those `where` it holds marked `thorough`."""
    return [pytest.param(row, marks=pytest.mark.thorough) if where(row) else row for row in rows]


def slow_to_compile(copula: Any) -> bool:
    """Return whether a family takes most of the time of a test whose subject is not the families."""
    return (copula if isinstance(copula, type) else type(copula)).__name__ in ("StudentT", "Gaussian")
