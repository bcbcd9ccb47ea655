"""Which answers to a query are equal: from the texts of a log, or from a table of answers beside it, to codes.

Texts are not kept: of each answer a hash of what is left of it for comparing (`rcjax.policy.answers`), and in the end a
small number that the equal answers to one query share.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from rcjax.logs.checked_rows import Rows, load
from rcjax.logs.columns import ADVICE, ANSWERS, SAMPLE, require_columns
from rcjax.logs.errors import LogError, unlike
from rcjax.logs.log import NO_ANSWER
from rcjax.policy.answers import Comparison, comparable

if TYPE_CHECKING:
    import polars as pl

#: Hash of no answer.
UNKNOWN = 0

_KEY = ("query", "model")

_FORM = "give a table of query, model and answer (or answer_key)"


class AnswerTable:
    """What models answered, from a file or dataframe with columns query, model, and answer or answer_key.

    A cell without an answer is one that is not known. Raises `LogError` where a column is missing, a row names no
    query or model, there is no answer at all, or a model gave different answers to a query.
    """

    def __init__(self, source: Any, task: str) -> None:
        import polars as pl

        table = load(source, _columns)
        parts = [frame.with_columns(pl.all().cast(pl.String)) for frame in table.frames]
        frame = pl.concat(parts) if parts else pl.DataFrame({"query": [], "model": [], "answer": []})
        self.name, self._any = table.name, False
        self._column = next(name for name in ANSWERS if name in frame.columns)
        rows = Rows(table.name, table.source, frame, np.arange(frame.height))
        for name in _KEY:
            rows.refuse(frame[name].is_null(), name, f"is missing: {ADVICE[name]}")
        frame = frame.with_columns(code=pl.Series(hash_answers(frame[self._column], comparison(self._column, task))))
        other = frame.select(pl.col("code") != pl.col("code").first().over(_KEY)).to_series()
        rows.refuse(other, self._column, "is another answer to the query than in an earlier row: keep one of them")
        if not (frame["code"] != UNKNOWN).any():
            raise LogError(f"{table.name}: it holds no answers: {_FORM}")
        self._frame = frame.drop("code").unique(_KEY, keep="first")

    def put(self, rows: Rows) -> Rows:
        """Some rows of a log, whose answers are those of the table."""
        import polars as pl

        if SAMPLE in rows.frame.columns:
            what = f"a table of answers does not tell the samples of {rows.name} apart"
            raise LogError(f"{self.name}: {what}: put a column answer into the log itself")
        frame = rows.frame.drop(ANSWERS, strict=False).with_columns(pl.col("query").cast(pl.String))
        frame = frame.join(self._frame, on=_KEY, how="left", maintain_order="left")
        self._any |= not frame[self._column].is_null().all()
        return dataclasses.replace(rows, frame=frame)

    def finish(self, where: str, queries: Iterable[str], models: Iterable[str]) -> None:
        """Refuse a table that has no answer to any row of the log."""
        if not self._any:
            other = unlike(queries, self._frame["query"].to_list(), models, self._frame["model"].to_list(), "answers")
            raise LogError(f"{where}: no row has an answer in {self.name}: {other}")


def _columns(name: str, columns: list[str]) -> list[str]:
    key = next((column for column in ANSWERS if column in columns), "answer")
    require_columns(name, [*_KEY, key], columns)
    return [*_KEY, key]


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

    None if no query has two answers to compare.

    >>> equal_answers(np.array([[7, 0, 7], [5, 6, 6]])).tolist()
    [[0, -1, 0], [0, 1, 1]]
    """
    if not ((hashes != UNKNOWN).sum(1) > 1).any():
        return None
    codes = np.full(hashes.shape, NO_ANSWER, np.int32)
    for j in reversed(range(hashes.shape[1])):
        codes[hashes == hashes[:, j : j + 1]] = j
    return np.where(hashes == UNKNOWN, NO_ANSWER, codes).astype(np.int32)
