"""Which rows of a call log can be learnt from, and labels that come later, by query.

A service logs every call. Only queries that went to all models, whatever they answered, are a fair sample of all
queries: one that was deferred to a large model is a hard one. The service marks them (`shadow`), and only they are
taken.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from rcjax.logs.answers import Answers
from rcjax.logs.checked_rows import Rows, load, numbers, require_models, truth
from rcjax.logs.columns import ADVICE, SAMPLE, require_columns
from rcjax.logs.errors import LogError, brief, listed, unlike
from rcjax.logs.log import FailedCalls
from rcjax.logs.oddities import lost_answers
from rcjax.logs.scoring import RIGHT_OR_WRONG, Scoring
from rcjax.serving.call_log import ASKED_ANEW
from rcjax.signals import normalise_answer

if TYPE_CHECKING:
    import polars as pl


_RIGHT = "give the right answer to the query"

_FORMS = "give a table of query and answer (the right one), or of query, model and correct"

_FEWEST = 6  # answers, of which one should be right: three queries of two models

_SAMPLE = 1_000  # queries of a log that tell how it spells them


def read_labels(source: Any, log: Any, scoring: Scoring = RIGHT_OR_WRONG) -> Labeller:
    """Read labels of a log from a file or dataframe with columns query, model, correct, or query, answer.

    `correct` may be a score, as `scoring` says. Beside it, `sample` may say which of several answers it is; a cell of
    `correct` that is empty is a label that is not there yet.

    Raises `LogError` where columns are missing, another cell is empty, an answer is both right and wrong, or the labels
    are those of a log itself: the models' own answers.
    """
    import polars as pl
    import polars.selectors as cs

    from rcjax.logs.label_sheet import plain_cells

    if _is_same(source, log):
        name = os.path.basename(source) if isinstance(source, str | os.PathLike) else "labels"
        advice = "a log that has a column correct needs no labels; to have its answers judged"
        raise LogError(f"{name}: the labels are the log itself: {advice}, {_FORMS}")
    table = load(source, _label_columns)
    frames = [
        plain_cells(frame).with_columns(
            cs.by_name("query", SAMPLE, "answer", require_all=False).cast(pl.String), *truth(frame, scoring)
        )
        for frame in table.frames
    ]
    frame = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame({"query": [], "answer": []})
    by = "answer" if "answer" in frame.columns else "correct"
    if "model" not in frame.columns:
        frame = frame.with_columns(model=pl.lit(None, pl.String))
    rows = Rows(table.name, table.source, frame, np.arange(frame.height), scoring)
    for column in ("query", "answer") if by == "answer" else ("query", "model"):
        rows.refuse(frame[column].is_null(), column, f"is missing: {ADVICE.get(column, _RIGHT)}")
    return Labeller(by, rows if by == "answer" else _labelled(rows))


def _labelled(rows: Rows) -> Rows:
    """The rows that have a label, with numbers in its columns; labels that contradict each other are refused."""
    import polars as pl

    correct = pl.Series(numbers(rows, "correct", optional=True)).fill_nan(None)
    rows = dataclasses.replace(rows, frame=rows.frame.with_columns(correct=correct))
    labelled = rows.keep(rows.frame["correct"].is_not_null())
    if rows.frame.height and not labelled.frame.height:
        raise LogError(f"{rows.name}: none of its {rows.frame.height:,} rows has a label: fill in the column correct")
    key = [column for column in ("query", "model", SAMPLE) if column in rows.frame.columns]
    distinct = labelled.frame.unique([*key, "correct"], maintain_order=True)
    unclear = distinct.filter(pl.struct(key).is_duplicated())
    if unclear.height:
        query, model = unclear.select("query", "model").row(0)
        several = unclear.filter((pl.col("query") == query) & (pl.col("model") == model))["correct"]
        how = "right and wrong" if several.is_in([0.0, 1.0]).all() else "with several scores"
        raise LogError(f"{rows.name}: query {query}, model {model} is labelled {how}: give one label")
    return labelled


def _is_same(labels: Any, log: Any) -> bool:
    if isinstance(labels, str | os.PathLike) and isinstance(log, str | os.PathLike):
        return os.path.exists(labels) and os.path.exists(log) and os.path.samefile(labels, log)
    return labels is log


def _label_columns(name: str, columns: list[str]) -> list[str]:
    by_answer = "answer" in columns and "correct" not in columns
    if by_answer and "call_log" in columns:
        raise LogError(f"{name}: the labels are a call log, whose answers are the models' own: {_FORMS}")
    if by_answer:
        require_columns(name, ["query", "answer"], columns)
        return ["query", *(["model"] if "model" in columns else []), "answer"]
    require_columns(name, ["query", "model", "correct"], columns)
    return ["query", "model", "correct", *[SAMPLE] * (SAMPLE in columns and "call_log" not in columns)]


class Labeller:
    """Gives rows their column correct, from labels; it is empty if there is no label.

    Right answers are compared exactly, apart from case and white space; a query with several has any of them right.
    A row without an answer is wrong where its query has a right one.

    Args:
        by: "correct", whether each query and model was right, or "answer", right answers of each query.
        rows: of the labels; those that are not labelled yet are not among them.
    """

    def __init__(self, by: str, rows: Rows) -> None:
        self.by, self._source = by, rows.name
        self._any_label = self._any_answer = False
        self._all_right = True
        self._queries: dict[str, None] = {}  # of the log, the first ones
        self._models: dict[str, None] = {}  # of the log
        frame = rows.frame
        self._authors = {*frame["model"].drop_nulls()} if self.by == "answer" else set()
        self._key = [column for column in ("query", "model", SAMPLE) if column in frame.columns]
        self._right = frame.unique(self._key, maintain_order=True) if self.by == "correct" else frame.clear()
        self._answers: dict[str, set[str]] = {}
        if self.by == "answer":
            for query, answer in zip(frame["query"], frame["answer"], strict=True):
                self._answers.setdefault(query, set()).add(normalise_answer(answer))
        self._words = {word for words in self._answers.values() for word in words}
        self._unlike = 0  # answers that equal no label of any query; -1 where one does
        self._example = ""  # the first of them, beside its label
        #: Right answers of queries with several, for as long as no row gives them; the queries that rows are about.
        self._unmatched = {query: set(right) for query, right in self._answers.items() if len(right) > 1}
        self._asked: set[str] = set()

    def mark(self, rows: Rows) -> Rows:
        """The rows with their labels, from 0 to 1, in a column `label`, empty if there is none.

        Raises `LogError` where labels hold the answers of the log's models.
        """
        import polars as pl

        query = rows.frame["query"].cast(pl.String)
        self._note(rows, query)
        if self.by == "correct":
            labels = self._looked_up(rows, query)
        else:
            self._any_answer |= not rows.frame["answer"].is_null().all()
            judged = [self._judge(*row) for row in zip(query, rows.frame["answer"], strict=True)]
            labels = pl.Series(judged, dtype=pl.Float64)
        self._any_label |= labels.is_not_null().any()
        self._all_right &= bool((labels.drop_nulls() == 1).all())
        return dataclasses.replace(rows, frame=rows.frame.with_columns(label=labels))

    def _looked_up(self, rows: Rows, query: pl.Series) -> pl.Series:
        """The labels of rows by query and model."""
        if (SAMPLE in rows.frame.columns) != (SAMPLE in self._key):
            what = "labels by query and model do not tell samples apart"
            if SAMPLE in self._key:
                what = f"{self._source} tells samples apart, and the log has no column {SAMPLE}"
            advice = f"label by query and answer, or by query, model, {SAMPLE} and correct where the log has samples"
            raise LogError(f"{rows.name}: {what}: {advice}")
        asked = rows.frame.select(column for column in self._key if column != "query").with_columns(query)
        return asked.join(self._right, on=self._key, how="left", maintain_order="left")["correct"]

    def _note(self, rows: Rows, query: pl.Series) -> None:
        self._models |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        authors = sorted(self._authors & {*self._models})
        if authors:
            what = f"its answers are those of {listed(authors)}, which the log judges"
            raise LogError(f"{self._source}: {what}: {_FORMS}; if they are right, leave out the column model")
        if len(self._queries) < _SAMPLE:
            self._queries |= dict.fromkeys(query.drop_nulls().unique(maintain_order=True).head(_SAMPLE))

    def _judge(self, query: str | None, answer: str | None) -> float | None:
        if query not in self._answers:
            return None
        words = normalise_answer(answer or "")
        if answer is not None and self._unlike >= 0:
            label = min(self._answers[query])
            self._example = self._example or f"query {query}: label {brief(label)}, answer {brief(answer)}"
            self._unlike = -1 if words in self._words else self._unlike + 1
        if query in self._unmatched:
            self._asked.add(query)
            self._unmatched[query].discard(words)
        return float(words in self._answers[query])

    def finish(self, name: str) -> None:
        """Refuse a log for which the labels had nothing to tell, or told that all its answers are right."""
        if self.by == "answer" and not self._any_answer:
            advice = "give labels by query, model and correct"
            raise LogError(f"{name}: no row has an answer to compare with {self._source}: {advice}")
        if not self._any_label:
            about = () if self.by == "answer" else self._right["model"].to_list()
            labelled = self._answers or self._right["query"].to_list()
            raise LogError(
                f"{name}: no row has a label in {self._source}: "
                f"{unlike(self._queries, labelled, self._models, about, 'labels')}"
            )
        if self._unlike >= _FEWEST:
            what = f"no label equals any answer ({self._example})"
            raise LogError(f"{self._source}: {what}: write labels and answers alike")
        if self._all_right and self._asked and not any(self._unmatched[query] for query in self._asked):
            what = "every answer of the log is right by them, those that contradict each other too"
            raise LogError(f"{self._source}: the labels are the log's own answers: {what}: {_FORMS}")


class UsableCalls:
    """Keeps the rows of a call log to learn from, and counts the others by their kind; other logs are as they were.

    Left out are calls that failed, or that no policy judges (`rcjax serve` passes them on), queries that did not go to
    all models (where the log has a column shadow), queries that ask what an earlier one did (by `prompt_digest`), and
    answers to a query that the model had answered before (with a column sample: of the same number).
    """

    def __init__(self) -> None:
        self.left_out: dict[str, int] = {}
        self._answered: set[str] = set()
        self._asked_first: dict[str, str] = {}  # the query that asked something first, by the digest
        self._failed: defaultdict[str, set[str]] = defaultdict(set)  # the models whose call failed, by digest or query
        self._shadowed = self._any_shadow = self._tells = False

    def keep(self, rows: Rows) -> Rows:
        """The rows to learn from. Raises `LogError` where a row is of another version."""
        import polars as pl

        if "call_log" not in rows.frame.columns:
            return rows
        self._tells = True
        version = rows.frame["call_log"].cast(pl.Int64, strict=False)
        rows.refuse(version.ne_missing(1), "call_log", "is not the version of a call log that rcjax reads, 1")
        if "error" in rows.frame.columns:
            rows = rows.keep(~(rows.frame["query"].is_null() & rows.frame["error"].is_not_null()))  # of no query
            passed = rows.frame["error"].cast(pl.String).str.contains("^(?:not judged|passed on)").fill_null(False)
            rows = self._drop(rows, passed, "calls that no policy judges")
            anew = rows.frame["error"].cast(pl.String).str.starts_with(ASKED_ANEW).fill_null(False)
            rows = self._drop(rows, anew, "answers that were asked for anew")
            failed = rows.frame["error"].is_not_null()
            if "unread" in rows.frame.columns:
                failed &= rows.frame["unread"].ne_missing("true")
            self._note_failed(rows.keep(failed).frame)
            rows = self._drop(rows, failed, "calls that failed")
        if "shadow" in rows.frame.columns:
            deferred = rows.frame["shadow"].fill_null("") != "true"
            rows = self._drop(rows, deferred, "of queries that did not go to all models")
            self._shadowed, self._any_shadow = True, self._any_shadow or rows.frame.height > 0
        rows = self._drop(rows, self._asked_again(rows), "of queries that ask what an earlier one did")
        require_models(rows)
        return self._drop(rows, self._answered_again(rows), "repeated answers")

    def _answered_again(self, rows: Rows) -> pl.Series:
        """Which rows are about a query and model, and sample, of an earlier row."""
        import polars as pl

        key = [name for name in ("query", "model", SAMPLE) if name in rows.frame.columns]
        names = [pl.col(name).cast(pl.String).fill_null("") for name in key]
        answered = rows.frame.select(pl.concat_str(names, separator="\0")).to_series()
        before = pl.Series([name in self._answered for name in answered], dtype=pl.Boolean)
        self._answered |= {*answered}
        return before | ~answered.is_first_distinct()

    def _asked_again(self, rows: Rows) -> pl.Series:
        """Of which rows another query has asked the same before: a probe, or a flood, is one question."""
        import polars as pl

        if "prompt_digest" not in rows.frame.columns:
            return pl.Series([False] * rows.frame.height, dtype=pl.Boolean)
        pairs = zip(*rows.frame.select("query", "prompt_digest"), strict=True)
        first = self._asked_first
        return pl.Series(
            [bool(said) and first.setdefault(said, query) != query for query, said in pairs], dtype=pl.Boolean
        )

    def _note_failed(self, frame: pl.DataFrame) -> None:
        """Keep in mind which calls failed, of the queries that went to all models."""
        import polars as pl

        if "shadow" in frame.columns:
            frame = frame.filter(pl.col("shadow") == "true")
        what = pl.coalesce(column for column in ("prompt_digest", "query") if column in frame.columns)
        for asked, model in frame.select(what.cast(pl.String), "model").drop_nulls().iter_rows():
            self._failed[asked].add(model)

    def failed(self, answers: Answers) -> tuple[FailedCalls, ...]:
        """Which queries lack an answer as a call failed; what asks the same counts once.

        Of a log that does not tell of calls, as `lost_answers` has it.

        Args:
            answers: to learn from.
        """
        if not self._tells:
            return lost_answers(answers)
        number_of = {query: number for number, query in enumerate(answers.queries)} if self._failed else {}
        by_query, patterns = answers.models_by_query() if self._failed else {}, Counter()
        for asked, models in self._failed.items():
            number = number_of.get(self._asked_first.get(asked, asked), -1)
            answered = by_query.get(number, frozenset())
            if models - answered:
                patterns[answered | models, frozenset(models - answered)] += 1
        return tuple(FailedCalls(asked, failed, queries) for (asked, failed), queries in patterns.items())

    def _drop(self, rows: Rows, bad: pl.Series, why: str) -> Rows:
        self.left_out[why] = self.left_out.get(why, 0) + int(bad.sum())
        return rows.keep(~bad)

    def finish(self, name: str) -> None:
        """Refuse a log none of whose queries went to all models."""
        if self._shadowed and not self._any_shadow and any(self.left_out.values()):
            raise LogError(
                f"{name}: no query of it went to all models, and those that were deferred are no fair sample: "
                "run the cascade with a share of shadow queries, such as Cascade(..., shadow=0.05) or "
                "rcjax serve --shadow 5%"
            )
