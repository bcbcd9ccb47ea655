"""Rows of a log, as they come in, put into matrices with one row per query and one column per model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import ADVICE

if TYPE_CHECKING:
    import polars as pl

_GROWTH = 1.5


class Matrices:
    """Matrices that grow by whole batches of rows: what is held is the matrices, not the rows.

    Queries and models are numbered by first appearance. `empty` has, by the matrix's name, what stands where a model
    did not answer.
    """

    def __init__(self, **empty: Any) -> None:
        self.queries: dict[str, int] = {}
        self.models: dict[str, int] = {}
        self._empty = {"row": -1, **empty}
        self._held = {name: np.full((0, 0), value) for name, value in self._empty.items()}

    @classmethod
    def whole(cls, queries: Mapping[str, int], models: Mapping[str, int], **held: np.ndarray) -> Matrices:
        """Matrices that are there, (n, k) each, by name, with `row` among them: nothing is added to them."""
        matrices = cls()
        matrices.queries, matrices.models, matrices._held = dict(queries), dict(models), held
        return matrices

    def cells_of(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of each row's cell in the matrices, which have room for it from now on."""
        import polars as pl

        rows.refuse(rows.frame["query"].is_null(), "query", f"is missing: {ADVICE['query']}")
        by_query = numbered(self.queries, rows.frame["query"].cast(pl.String))
        by_model = numbered(self.models, rows.frame["model"])
        self._make_room()
        return by_query, by_model

    def repeated(self, rows: Rows, cells: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Which of the rows are about a query and model of an earlier row; the others take their cells."""
        import polars as pl

        flat = cells[0] * len(self.models) + cells[1]
        held = self._held["row"]
        new = pl.Series(flat).is_first_distinct().to_numpy() & (held[cells] < 0)
        held[cells[0][new], cells[1][new]] = rows.position[new]
        return ~new

    def put(self, cells: tuple[np.ndarray, np.ndarray], **values: np.ndarray) -> None:
        """Write values of rows, by the matrix's name, into their cells."""
        for name, value in values.items():
            self._widen(name, value)
            self._held[name][cells] = value

    def replace(self, name: str, matrix: np.ndarray) -> None:
        """Put other values in the place of a whole matrix (n, k)."""
        self._widen(name, matrix)
        self.take(name)[:] = matrix

    def _widen(self, name: str, value: np.ndarray) -> None:
        """Make room for numbers in a matrix of yes and no, as labels are until the first score."""
        if self._held[name].dtype == bool and np.asarray(value).dtype.kind == "f":
            self._held[name] = self._held[name].astype(float)

    def clear(self, cells: tuple[np.ndarray, np.ndarray]) -> None:
        """Make cells as if their models had not answered."""
        for name, held in self._held.items():
            held[cells] = self._empty[name]

    def take(self, name: str) -> np.ndarray:
        """The (n, k) matrix of a name; `row` is the row's position in the source, −1 where there is none."""
        return self._held[name][: len(self.queries), : len(self.models)]

    def add(self, name: str, empty: Any) -> None:
        """One more matrix from now on, unless it is there: `empty` stands where a model did not answer."""
        if name not in self._held:
            self._empty[name] = empty
            self._held[name] = np.full(self._held["row"].shape, empty)

    @property
    def names(self) -> list[str]:
        """Of all matrices."""
        return list(self._held)

    def has(self, name: str) -> bool:
        """Whether there is a matrix of a name."""
        return name in self._held

    def _make_room(self) -> None:
        n, k = len(self.queries), len(self.models)
        rows, columns = self._held["row"].shape
        if n <= rows and k <= columns:
            return
        shape = (rows if n <= rows else max(n, int(_GROWTH * rows)), max(k, columns))
        for name, old in self._held.items():
            self._held[name] = np.full(shape, self._empty[name], old.dtype)
            self._held[name][:rows, :columns] = old


def numbered(number_of: dict[str, int], texts: pl.Series) -> np.ndarray:
    """The number of each text, by first appearance among all that are known; new ones are added."""
    import polars as pl

    here = texts.unique(maintain_order=True)
    numbers = [number_of.setdefault(text, len(number_of)) for text in here]
    return texts.replace_strict(here, numbers, return_dtype=pl.Int64).to_numpy()


def query_ids(texts: Iterable[str]) -> tuple[int | str, ...]:
    """Query ids as ints, where all are whole numbers.

    Text files do not tell 7 from "7": one rule for every source makes the same log of each.
    """
    whole = re.compile(r"0|-?[1-9][0-9]*").fullmatch
    return tuple(map(int, texts)) if all(map(whole, texts)) else tuple(texts)
