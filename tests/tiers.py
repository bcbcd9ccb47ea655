"""Which rows of a table of tests the default tier leaves out."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def thorough(rows: Iterable[Any], where: Callable[[Any], bool]) -> list[Any]:
    """The rows as parameters of a test, those `where` it holds marked `thorough`."""
    return [pytest.param(row, marks=pytest.mark.thorough) if where(row) else row for row in rows]


def slow_to_compile(copula: Any) -> bool:
    """Whether a family takes most of the time of a test that is about something else than the families."""
    return (copula if isinstance(copula, type) else type(copula)).__name__ in ("StudentT", "Gaussian")
