"""Which answers to a query are equal: from the texts of a log, or from a table of answers beside it, to codes.

Texts are not kept: of each answer a hash of what is left of it for comparing (`rcjax.policy.answers`), and in the end a
small number that the equal answers to one query share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rcjax.logs.checked_rows import Rows, load
from rcjax.logs.columns import ADVICE, ANSWERS, SAMPLE, require_columns
from rcjax.logs.errors import LogError, brief, listed, spelt_otherwise
from rcjax.logs.log import NO_ANSWER
from rcjax.logs.matrices import Matrices
from rcjax.policy.answers import Comparison, comparable

if TYPE_CHECKING:
    import polars as pl

#: Hash of no answer.
UNKNOWN = 0


_FORM = "give a table of query, model and answer (or answer_key)"


class AnswerTable:
    """Answers by query and model, from a table beside the log."""

    def __init__(self, name: str, compare: Comparison, hashes: dict[tuple[str, str], int]) -> None:
        self.name = name
        self.compare = compare
        self._hashes = hashes
        self._any = False

    def look_up(self, rows: Rows) -> np.ndarray:
        """(m,) hashes of the answers of some rows of the log."""
        import polars as pl

        pairs = zip(rows.frame["query"].cast(pl.String), rows.frame["model"], strict=True)
        hashes = np.array([self._hashes.get(pair, UNKNOWN) for pair in pairs], np.int64)
        self._any |= bool(hashes.any())
        return hashes

    def finish(self, where: str, queries: Iterable[str], models: Iterable[str]) -> None:
        """Refuse a table that has no answer to any row of the log."""
        if self._any:
            return
        pair = spelt_otherwise(queries, {query for query, _ in self._hashes})
        others = {model for _, model in self._hashes}
        pair = pair or spelt_otherwise(models, others)
        hint = "do both name queries and models alike?"
        if pair is not None:
            hint = f"names are written differently, {brief(pair[0])!r} in the log and {brief(pair[1])!r} in the answers"
            hint += ": write them alike"
        elif not {*models} & others:
            hint = f"they are of the models {listed(sorted(others))}, not {listed(models)}"
        raise LogError(f"{where}: no row has an answer in {self.name}: {hint}")


class Compared:
    """Gathers the answers of a log: its own, or those of a table beside it."""

    def __init__(self, task: str, table: AnswerTable | None) -> None:
        self._task, self._table = task, table
        self.how = comparison("answer", task) if table is None else table.compare
        """How they are compared."""

    def put(self, held: Matrices, cells: tuple[np.ndarray, np.ndarray], rows: Rows) -> None:
        """Put the hashes of the answers of some rows into their cells of a log's matrices."""
        hashes = self.hashes(rows)
        if hashes is not None:
            held.add("answer", UNKNOWN)
            held.put(cells, answer=hashes)

    def hashes(self, rows: Rows) -> np.ndarray | None:
        """(m,) of the answers of some rows, 0 for none; None where nothing tells answers."""
        column = next((name for name in ANSWERS if name in rows.frame.columns), None)
        if self._table is not None:
            if SAMPLE in rows.frame.columns:
                what = f"a table of answers does not tell the samples of {rows.name} apart"
                raise LogError(f"{self._table.name}: {what}: put a column answer into the log itself")
            return self._table.look_up(rows)
        if column is None:
            return None
        self.how = comparison(column, self._task)
        return hash_answers(rows.frame[column], self.how)

    def finish(self, where: str, held: Matrices) -> None:
        """Refuse a table that has nothing to do with the log."""
        if self._table is not None:
            self._table.finish(where, held.queries, held.models)

    @staticmethod
    def codes(held: Matrices, columns: Sequence[int]) -> np.ndarray | None:
        """(n, k) the codes of some models' answers; None where there is nothing to compare."""
        return equal_answers(held.take("answer")[:, columns]) if held.has("answer") else None


def read_answer_table(source: Any, task: str) -> AnswerTable:
    """Read which answers models gave, from a file or dataframe with columns query, model, and answer or answer_key.

    A cell without an answer is one that is not known. Raises `LogError` where a column is missing, a row names no
    query or model, there is no answer at all, or a model gave different answers to a query.
    """
    import polars as pl

    table = load(source, _columns)
    frames = [frame.with_columns(pl.all().cast(pl.String)) for frame in table.frames]
    frame = pl.concat(frames) if frames else pl.DataFrame({"query": [], "model": [], "answer": []})
    column = next(name for name in ("answer_key", "answer") if name in frame.columns)
    rows = Rows(table.name, table.source, frame, np.arange(frame.height))
    for name in ("query", "model"):
        rows.refuse(frame[name].is_null(), name, f"is missing: {ADVICE[name]}")
    compare = comparison(column, task)
    hashes: dict[tuple[str, str], int] = {}
    codes = hash_answers(frame[column], compare)
    for row, (query, model, code) in enumerate(zip(frame["query"], frame["model"], codes.tolist(), strict=True)):
        if hashes.setdefault((query, model), code) != code:
            bad = np.arange(frame.height) == row
            rows.refuse(bad, column, "is another answer to the query than in an earlier row: keep one of them")
    if not codes.any():
        raise LogError(f"{table.name}: it holds no answers: {_FORM}")
    return AnswerTable(table.name, compare, hashes)


def _columns(name: str, columns: list[str]) -> list[str]:
    key = "answer_key" if "answer_key" in columns else "answer"
    require_columns(name, ["query", "model", key], columns)
    return ["query", "model", key]


def comparison(column: str, task: str) -> Comparison:
    """How the answers of a column are compared.

    >>> comparison("answer", "choice"), comparison("answer_key", "choice")
    ('choice', 'key')
    """
    if column == "answer_key":
        return "key"
    return "choice" if task == "choice" else "text"


def hash_answers(answers: pl.Series, compare: Comparison) -> np.ndarray:
    """(m,) a number for each answer, by what is left of it for comparing; 0 for none.

    >>> import polars as pl
    >>> one, other, none = hash_answers(pl.Series(["1,000", "1000.0", None]), "text").tolist()
    >>> one == other, none
    (True, 0)
    """
    import polars as pl

    texts = answers.unique()
    hashes = [_hash(comparable(text, compare)) for text in texts]
    return answers.replace_strict(texts, hashes, return_dtype=pl.Int64).to_numpy()


def _hash(text: str | None) -> int:
    if text is None:
        return UNKNOWN
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def equal_answers(hashes: np.ndarray) -> np.ndarray | None:
    """(n, k) codes of answers, from their hashes: of each the first model that gave the same; NO_ANSWER for none.

    None where no query has two answers to compare.

    >>> equal_answers(np.array([[7, 0, 7], [5, 6, 6]])).tolist()
    [[0, -1, 0], [0, 1, 1]]
    """
    if not ((hashes != UNKNOWN).sum(1) > 1).any():
        return None
    codes = np.full(hashes.shape, NO_ANSWER, np.int32)
    for j in reversed(range(hashes.shape[1])):
        codes[hashes == hashes[:, j : j + 1]] = j
    return np.where(hashes == UNKNOWN, NO_ANSWER, codes).astype(np.int32)
