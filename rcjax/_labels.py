"""Which rows of a call log can be learnt from, and labels that come later: who was right, by query.

A service logs every call. Only queries that went to all models, whatever they answered, are a fair sample of all
queries: one that was deferred to a large model is a hard one. The service marks them (`shadow`), and only they are
taken.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from rcjax._matrices import Matrices
from rcjax._rows import ADVICE, LogError, Rows, load, numbers, require_columns, require_models, truth
from rcjax.signals import normalise_answer

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Labeller", "Labels", "UsableCalls", "read_labels"]

NEWEST = 1  # version of the lines of a call log that this rcjax reads
_RIGHT = "give the right answer to the query"


class Labels(NamedTuple):
    """Labels as they were read: of each query and model whether it was `correct`, or of each query right answers."""

    by: str  # "correct" or "answer"
    rows: Rows


def read_labels(source: Any) -> Labels:
    """Read labels from a file or dataframe with columns query, model, correct, or query, answer.

    Raises `LogError` where columns are missing, a cell is empty, or a query and model are both right and wrong.
    """
    import numpy as np
    import polars as pl

    def choose(name: str, found: list[str]) -> list[str]:
        needed = ["query", "answer"] if "answer" in found and "correct" not in found else ["query", "model", "correct"]
        require_columns(name, needed, found)
        return needed

    table = load(source, choose)
    frames = [
        frame.with_columns(pl.col("query").cast(pl.String), *truth(frame)).with_columns(
            [pl.col("answer").cast(pl.String)] if "answer" in frame.columns else []
        )
        for frame in table.frames
    ]
    frame = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame({"query": [], "answer": []})
    by = "answer" if "answer" in frame.columns else "correct"
    if by == "answer":
        frame = frame.with_columns(model=pl.lit(None, pl.String))
    name = table.name
    rows = Rows(name, table.source, frame, np.arange(frame.height))
    for column in ("query", "answer") if by == "answer" else ("query", "model", "correct"):
        rows.refuse(frame[column].is_null(), column, f"is missing: {ADVICE.get(column, _RIGHT)}")
    if by == "correct":
        numbers(rows, "correct")
        distinct = frame.unique(["query", "model", "correct"], maintain_order=True)
        unclear = distinct.filter(pl.struct("query", "model").is_duplicated())
        if unclear.height:
            query, model, _ = unclear.select("query", "model", "correct").row(0)
            raise LogError(f"{name}: query {query}, model {model} is labelled right and wrong: give one label")
    return Labels(by, rows)


class Labeller:
    """Gives rows their column correct, from labels, and drops those without a label.

    Right answers are compared exactly, but for case and white space; a query with several has any of them right.
    A row without an answer is wrong where its query has a right one.
    """

    def __init__(self, labels: Labels) -> None:
        self.by, self._source = labels.by, labels.rows.name
        self.left_out = 0
        self._any_label = self._any_answer = False
        known = labels.rows.frame
        self._right: dict[Any, dict[str, float]] = {}
        self._answers: dict[str, set[str]] = {}
        if self.by == "correct":
            for model in known["model"].unique():
                own = known.filter(model=model)
                self._right[model] = dict(zip(own["query"], own["correct"].cast(float), strict=True))
        else:
            for query, answer in zip(known["query"], known["answer"], strict=True):
                self._answers.setdefault(query, set()).add(normalise_answer(answer))

    def keep(self, rows: Rows) -> Rows:
        """The rows that have a label, with it."""
        import polars as pl

        query = rows.frame["query"].cast(pl.String)
        if self.by == "correct":
            pairs = zip(query, rows.frame["model"], strict=True)
            found = [self._right.get(model, {}).get(name) for name, model in pairs]
        else:
            self._any_answer |= not rows.frame["answer"].is_null().all()
            found = [
                float(normalise_answer(answer or "") in self._answers[name]) if name in self._answers else None
                for name, answer in zip(query, rows.frame["answer"], strict=True)
            ]
        frame = rows.frame.with_columns(correct=pl.Series(found, dtype=pl.Float64))
        labelled = frame["correct"].is_not_null()
        kept = dataclasses.replace(rows, frame=frame).keep(labelled)
        self._any_label |= bool(labelled.any())
        self.left_out += frame.height - kept.frame.height
        return kept

    def finish(self, name: str) -> None:
        """Refuse a log for which the labels had nothing to tell."""
        if self.by == "answer" and not self._any_answer:
            advice = "give labels by query, model and correct"
            raise LogError(f"{name}: no row has an answer to compare with {self._source}: {advice}")
        if not self._any_label:
            raise LogError(f"{name}: no row has a label in {self._source}: do both name the queries alike?")


class UsableCalls:
    """Keeps the rows of a call log to learn from, and counts the others by their kind; other logs are as they were.

    Left out are calls that failed, queries that did not go to all models (where the log has a column shadow), and
    answers to a query that the model had answered before.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, int] = {}
        self._seen = Matrices()
        self._shadowed = self._any_shadow = False

    def keep(self, rows: Rows) -> Rows:
        """The rows to learn from. Raises `LogError` where a row is of a newer rcjax."""
        import polars as pl

        if "call_log" not in rows.frame.columns:
            return rows
        version = rows.frame["call_log"].cast(pl.Int64, strict=False)
        rows.refuse(version.is_null() | (version < 1), "call_log", "is no version of a call log")
        newer = f"is from a newer rcjax: this one reads up to {NEWEST}: upgrade rcjax"
        rows.refuse(version > NEWEST, "call_log", newer)
        if "error" in rows.frame.columns:
            rows = self._drop(rows, rows.frame["error"].is_not_null(), "calls that failed")
        if "shadow" in rows.frame.columns:
            deferred = rows.frame["shadow"].fill_null("") != "true"
            rows = self._drop(rows, deferred, "of queries that did not go to all models")
            self._shadowed, self._any_shadow = True, self._any_shadow or rows.frame.height > 0
        if not rows.frame.height:
            return rows
        require_models(rows)
        return self._drop(rows, pl.Series(self._seen.repeated(rows, self._seen.place(rows))), "repeated answers")

    def _drop(self, rows: Rows, bad: pl.Series, why: str) -> Rows:
        self.left_out[why] = self.left_out.get(why, 0) + int(bad.sum())
        return rows.keep(~bad)

    def finish(self, name: str) -> None:
        """Refuse a log none of whose queries went to all models."""
        if self._shadowed and not self._any_shadow and any(self.left_out.values()):
            raise LogError(
                f"{name}: no query of it went to all models, and those that were deferred are no fair sample: "
                "run the cascade with a share of shadow queries, such as Cascade(..., shadow=0.05)"
            )
