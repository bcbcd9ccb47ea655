"""Which rows of a call log can be learnt from, and labels that come later: who was right, by query.

A service logs every call. Only queries that went to all models, whatever they answered, are a fair sample of all
queries: one that was deferred to a large model is a hard one. The service marks them (`shadow`), and only they are
taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rcjax._rows import ADVICE, LogError, Rows, load, numbers, require_columns, truth
from rcjax.signals import normalise_answer

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Labels", "label", "read_labels", "usable_calls"]

NEWEST = 1  # version of the lines of a call log that this rcjax reads


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

    name, source, frame, _ = load(source, choose)
    frame = frame.with_columns(pl.col("query").cast(pl.String), *truth(frame))
    if "answer" in frame.columns:
        frame = frame.with_columns(pl.col("answer").cast(pl.String), model=pl.lit(None, pl.String))
    labels = Labels(
        "answer" if "answer" in frame.columns else "correct", Rows(name, source, frame, np.arange(frame.height))
    )
    empty = [column for column in frame.columns if column != "model" or labels.by == "correct"]
    for column in empty:
        advice = ADVICE.get(column, "give the right answer to the query")
        labels.rows.refuse(frame[column].is_null(), column, f"is missing: {advice}")
    if labels.by == "correct":
        numbers(labels.rows, "correct")
        distinct = frame.unique(["query", "model", "correct"], maintain_order=True)
        unclear = distinct.filter(pl.struct("query", "model").is_duplicated())
        if unclear.height:
            query, model, _ = unclear.select("query", "model", "correct").row(0)
            raise LogError(f"{name}: query {query}, model {model} is labelled right and wrong: give one label")
    return labels


def label(rows: Rows, labels: Labels) -> tuple[Rows, int]:
    """(the rows that have a label, with their column correct; how many have none).

    Right answers are compared exactly, but for case and white space; a query with several has any of them right.
    A row without an answer is wrong where its query has a right one.
    """
    import polars as pl

    known = labels.rows.frame
    query = rows.frame["query"].cast(pl.String)
    if labels.by == "correct":
        pairs = zip(known["query"], known["model"], strict=True)
        right = dict(zip(pairs, numbers(labels.rows, "correct").tolist(), strict=True))
        found = [right.get(pair) for pair in zip(query, rows.frame["model"], strict=True)]
    else:
        if rows.frame["answer"].is_null().all():
            advice = "give labels by query, model and correct"
            raise LogError(f"{rows.name}: no row has an answer to compare with {labels.rows.name}: {advice}")
        answers: dict[str, set[str]] = {}
        for name, answer in zip(known["query"], known["answer"], strict=True):
            answers.setdefault(name, set()).add(normalise_answer(answer))
        given = [normalise_answer(answer or "") for answer in rows.frame["answer"]]
        found = [
            float(answer in answers[name]) if name in answers else None
            for name, answer in zip(query, given, strict=True)
        ]
    frame = rows.frame.with_columns(correct=pl.Series(found, dtype=pl.Float64))
    labelled = frame["correct"].is_not_null()
    if not labelled.any():
        raise LogError(f"{rows.name}: no row has a label in {labels.rows.name}: do both name the queries alike?")
    kept = Rows(rows.name, rows.source, frame, rows.position).keep(labelled)
    return kept, frame.height - kept.frame.height


def usable_calls(rows: Rows) -> tuple[Rows, dict[str, int]]:
    """(the rows of a call log to learn from, how many others there are of each kind); other logs are as they were.

    Left out are calls that failed, queries that did not go to all models (where the log has a column shadow), and
    answers to a query that the model had answered before. Raises `LogError` where nothing is left, or the log is of
    a newer rcjax.
    """
    import polars as pl

    if "call_log" not in rows.frame.columns:
        return rows, {}
    version = rows.frame["call_log"].cast(pl.Int64, strict=False)
    rows.refuse(version.is_null() | (version < 1), "call_log", "is no version of a call log")
    rows.refuse(version > NEWEST, "call_log", f"is from a newer rcjax: this one reads up to {NEWEST}: upgrade rcjax")
    left_out: dict[str, int] = {}

    def drop(bad: pl.Series, why: str) -> Rows:
        left_out[why] = int(bad.sum())
        return rows.keep(~bad)

    if "error" in rows.frame.columns:
        rows = drop(rows.frame["error"].is_not_null(), "calls that failed")
    if "shadow" in rows.frame.columns:
        rows = drop(rows.frame["shadow"].fill_null("") != "true", "of queries that did not go to all models")
        if not rows.frame.height and any(left_out.values()):
            raise LogError(
                f"{rows.name}: no query of it went to all models, and those that were deferred are no fair sample: "
                "run the cascade with a share of shadow queries, such as Cascade(..., shadow=0.05)"
            )
    pairs = rows.frame.select(pl.struct("query", "model").is_first_distinct()).to_series()
    return drop(~pairs, "repeated answers"), left_out
