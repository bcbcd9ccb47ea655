"""Tables beside a log: labels that come later, answers, and the sheet in which a person labels some.

A sheet holds answers drawn at random, a row each, with an empty column `correct`. To draw answers more often where
policies depend on them was tried, and brought nothing that could be told from noise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs

from rcjax._base.files import write_atomically
from rcjax._base.wording import count
from rcjax.logs.answers import UNKNOWN, comparison, hash_answers
from rcjax.logs.checked_rows import Rows, numbers, require_names, truth
from rcjax.logs.columns import ANSWERS, RIGHT_OR_WRONG, SAMPLE, Scoring, plain_name, require_columns
from rcjax.logs.errors import LogError, brief, listed, unlike
from rcjax.logs.sources import load
from rcjax.policy.decisions import Comparison
from rcjax.signals import normalise_answer
from rcjax.signals.canonical import INVALID, canonical_json

if TYPE_CHECKING:
    from rcjax.logs.log import Log

_FORMS = "give a table of query and answer (the right one), or of query, model and correct"

_FEWEST = 6  # answers, of which one should be right: three queries of two models


class Labels(NamedTuple):
    """Labels of some answers of a log."""

    by: str
    """"correct": whether answers of models are right; "answer": what are right answers to queries."""
    name: str
    """Of their table."""
    frame: pl.DataFrame
    """`query`, `model` and perhaps `sample` with `correct`, from 0 to 1, each once; or `query` and `words`."""
    authors: tuple[str, ...] = ()
    """The models that right answers are said to be of."""


def read_labels(source: Any, log: Any, scoring: Scoring = RIGHT_OR_WRONG) -> Labels:
    """Read labels of a log from a file or dataframe with columns query, model, correct, or query, answer.

    `correct` may be a score, as `scoring` says. Beside it, `sample` may say which of several answers it is; a cell of
    `correct` that is empty is a label that is not there yet.

    Raises `LogError` where columns are missing, another cell is empty, an answer is both right and wrong, or the labels
    are those of a log itself: the models' own answers.
    """
    if _is_same(source, log):
        name = os.path.basename(source) if isinstance(source, str | os.PathLike) else "labels"
        advice = "a log that has a column correct needs no labels; to have its answers judged"
        raise LogError(f"{name}: the labels are the log itself: {advice}, {_FORMS}")
    table = load(source, _label_columns)
    texts = cs.by_name("query", "model", SAMPLE, "answer", require_all=False).cast(pl.String)
    frames = [plain_cells(frame).with_columns(texts, *truth(frame, scoring)) for frame in table.frames]
    frame = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame({"query": [], "answer": []})
    if "model" not in frame.columns:
        frame = frame.with_columns(model=pl.lit(None, pl.String))
    rows = Rows(table.name, table.source, frame, np.arange(frame.height), scoring)
    if "answer" not in frame.columns:
        require_names(rows)
        return Labels("correct", table.name, _labelled(rows))
    for column in ("query", "answer"):
        rows.refuse(frame[column].is_null(), column, "is missing: give the query, and a right answer to it")
    words = frame.select("query", words=normalised(frame["answer"])).unique(maintain_order=True)
    return Labels("answer", table.name, words, tuple(frame["model"].drop_nulls().unique()))


def _labelled(rows: Rows) -> pl.DataFrame:
    """The rows that have a label, a number, each once; labels that contradict each other are refused."""
    frame = rows.frame.with_columns(correct=pl.Series(numbers(rows, "correct", optional=True)).fill_nan(None))
    labelled = frame.drop_nulls("correct").unique(maintain_order=True)
    if frame.height and not labelled.height:
        raise LogError(f"{rows.name}: none of its {frame.height:,} rows has a label: fill in the column correct")
    unclear = labelled.filter(pl.struct(pl.exclude("correct")).is_duplicated())
    if unclear.height:
        query, model = unclear.select("query", "model").row(0)
        several = unclear.filter((pl.col("query") == query) & (pl.col("model") == model))["correct"]
        how = "right and wrong" if several.is_in([0.0, 1.0]).all() else "with several scores"
        raise LogError(f"{rows.name}: query {brief(query)}, model {brief(model)} is labelled {how}: give one label")
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


def normalised(answers: pl.Series) -> pl.Series:
    """Answers as labels are compared with them: exactly, apart from case and white space."""
    texts = answers.unique()
    return answers.replace_strict(texts, [text and normalise_answer(text) for text in texts], return_dtype=pl.String)


def put_labels(frame: pl.DataFrame, labels: Labels, name: str, models: Sequence[str]) -> pl.DataFrame:
    """The rows of a log with their labels, from 0 to 1, in a column `label`, NaN if there is none.

    A query with several right answers has any of them right. A row without an answer is wrong where its query has a
    right one. Raises `LogError` where labels are those of nothing in the log, or its own answers.

    Args:
        frame: rows by `query`, `model` and `sample`, or with `words`, their answers normalised.
        labels: as read.
        name: the log's, for messages.
        models: all of the log.
    """
    if authors := sorted({*labels.authors} & {*models}):
        what = f"its answers are those of {listed(authors)}, which the log judges"
        raise LogError(f"{labels.name}: {what}: {_FORMS}; if they are right, leave out the column model")
    label = _by_answer(frame, labels, name) if labels.by == "answer" else _by_model(frame, labels, name)
    if label.is_null().all():
        about = labels.frame["model"] if labels.by == "correct" else ()
        why = unlike([frame["query"], models], [labels.frame["query"], about])
        raise LogError(f"{name}: no row has a label in {labels.name}: {why}")
    return frame.with_columns(label=label.fill_null(np.nan))


def _by_model(frame: pl.DataFrame, labels: Labels, name: str) -> pl.Series:
    """The labels of rows by query and model, and sample."""
    key = [column for column in labels.frame.columns if column != "correct"]
    if (SAMPLE in frame.columns) != (SAMPLE in key):
        what = "labels by query and model do not tell samples apart"
        if SAMPLE in key:
            what = f"{labels.name} tells samples apart, and the log has no column {SAMPLE}"
        advice = f"label by query and answer, or by query, model, {SAMPLE} and correct where the log has samples"
        raise LogError(f"{name}: {what}: {advice}")
    return frame.select(key).join(labels.frame, on=key, how="left", maintain_order="left")["correct"]


def _by_answer(frame: pl.DataFrame, labels: Labels, name: str) -> pl.Series:
    """The labels of rows by right answers to their queries."""
    if frame["words"].is_null().all():
        advice = "give labels by query, model and correct"
        raise LogError(f"{name}: no row has an answer to compare with {labels.name}: {advice}")
    right, key = labels.frame, ["query", "words"]
    equal = frame.select(key).join(right.with_columns(right=1.0), on=key, how="left", maintain_order="left")
    judged = pl.col("query").is_in(right["query"].implode())
    rows = equal.with_columns(right=pl.when(judged).then(pl.col("right").fill_null(0.0)))
    answered = rows.drop_nulls()
    if answered.height >= _FEWEST and not answered["words"].is_in(right["words"].implode()).any():
        query, answer, _ = answered.row(0)
        what = f"no label equals any answer (query {brief(query)}: label {right.filter(query=query)['words'].min()}, "
        raise LogError(f"{labels.name}: {what}answer {answer}): write labels and answers alike")
    return rows["right"]


# -- answers


def put_answers(frame: pl.DataFrame, source: Any, name: str, task: str) -> tuple[pl.DataFrame, Comparison]:
    """(the rows of a log, whose answers are those of a table, how these are compared).

    A cell without an answer is one that is not known. Raises `LogError` where a column is missing, a row names no
    query or model, a model gave different answers to a query, or the log has none of the answers.

    Args:
        frame: rows by `query` and `model`.
        source: a file or dataframe with columns query, model, and answer or answer_key.
        name: the log's, for messages.
        task: what the models did.
    """

    def choose(name: str, columns: list[str]) -> list[str]:
        needed = ["query", "model", next((column for column in ANSWERS if column in columns), "answer")]
        require_columns(name, needed, columns)
        return needed

    table, key = load(source, choose), ["query", "model"]
    if SAMPLE in frame.columns:
        what = f"a table of answers does not tell the samples of {name} apart"
        raise LogError(f"{table.name}: {what}: put a column answer into the log itself")
    parts = [part.with_columns(pl.all().cast(pl.String)) for part in table.frames]
    told = pl.concat(parts) if parts else pl.DataFrame({"query": [], "model": [], "answer": []})
    column, rows = told.columns[-1], Rows(table.name, table.source, told, np.arange(told.height))
    require_names(rows)
    compare = comparison(column, task)
    codes = told.select(*key, answer=pl.Series(hash_answers(told[column], compare)))
    other = codes.select(pl.col("answer") != pl.col("answer").first().over(key)).to_series()
    rows.refuse(other, column, "is another answer to the query than in an earlier row: keep one of them")
    codes = codes.unique(key, keep="first")
    joined = frame.drop("answer", strict=False).join(codes, on=key, how="left", maintain_order="left")
    if not (joined["answer"].fill_null(UNKNOWN) != UNKNOWN).any():
        why = unlike([frame["query"], frame["model"]], [codes["query"], codes["model"]])
        raise LogError(f"{name}: no row has an answer in {table.name}: {why}")
    return joined.with_columns(pl.col("answer").fill_null(UNKNOWN)), compare


# -- sheets


#: What columns of a log may be called that hold texts; the first that there is.
TEXTS = {
    "question": ("question", "prompt", "input"),
    "right_answer": ("right_answer", "reference"),
    "answer": ("text", "answer", "response", "output"),
}

# What a spreadsheet runs, behind blanks and signs that nobody sees; numbers stay what they are.
_FORMULA = r"^'*(?:[\s\x00-\x20\x7f\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]|[\t\r\n])"
_NUMBER = r"^[+-]?\d+(?:[.,]\d+)*\s?%?$"


def draw_answers(log: Log, number: int, seed: int = 0) -> list[tuple[int, int]]:
    """(query, model) of so many answers without a label, by position, in order of the queries.

    Models get so many that all have as many labels in the end; of a model, each answer is as likely as another.
    Raises `LogError` where there are not so many.
    """
    free, labels = np.asarray(log.answered) & ~log.labelled, log.labelled.sum(0)
    if not free.any():
        raise LogError(f"{log.source}: every answer has a label already")
    if number > free.sum():
        only = f"only {count(int(free.sum()), 'answer')} without a label"
        raise LogError(f"{log.source}: {only}: draw no more than that")
    new, left, rng = np.zeros(len(labels), int), free.sum(0), np.random.default_rng(seed)
    for _ in range(number):
        new[np.where(new < left, labels + new, np.inf).argmin()] += 1
    drawn = (rng.choice(np.flatnonzero(column), size, replace=False) for column, size in zip(free.T, new, strict=True))
    return sorted((int(query), model) for model, queries in enumerate(drawn) for query in queries)


def label_sheet(log: Log, drawn: Sequence[tuple[int, int]], texts: pl.DataFrame) -> pl.DataFrame:
    """The table: the answers drawn, then those that have a label; columns that would be empty are left out."""
    old = [(int(query), int(model)) for query, model in zip(*np.nonzero(log.labelled), strict=True)]
    cells, correct, samples = [*drawn, *old], np.asarray(log.correct), log.hand and log.hand.samples
    columns = {
        "query": [str(log.queries[query]) for query, _ in cells],
        "model": [log.models[model] for _, model in cells],
        **({} if samples is None else {SAMPLE: [str(samples[cell]) for cell in cells]}),
    }
    key = [name for name in columns if name in texts.columns]
    sheet = pl.DataFrame(columns).join(texts.unique(key, keep="first"), on=key, how="left", maintain_order="left")
    sheet = _with_other_calls(sheet, texts)
    shown = [
        name for name in (*TEXTS, OTHER_ANSWERS) if name in sheet.columns and sheet[name].fill_null("").ne("").any()
    ]
    labels = [*[None] * len(drawn), *(str(int(correct[cell])) for cell in old)]
    return sheet.select(*columns, *shown, pl.Series("correct", labels, pl.String))


#: The column with what other models answered to a query, where answers are calls or JSON.
OTHER_ANSWERS = "other_answers"


def _with_other_calls(sheet: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    """A table with the other calls, or JSON, that were answered to each query: side by side, differences are seen."""
    if "answer" not in sheet.columns:
        return sheet
    if not any(canonical_json((text or "").removeprefix(INVALID)) for text in sheet["answer"]):
        return sheet
    answers: dict[str, dict[str, None]] = {}
    for query, text in texts.select("query", "answer").iter_rows():
        answers.setdefault(query, {}).setdefault(text or "")
    pairs = sheet.select("query", "answer").iter_rows()
    others = ["\n".join(one for one in answers.get(query, {}) if one and one != text) for query, text in pairs]
    return sheet.with_columns(pl.Series(OTHER_ANSWERS, others, pl.String))


def answer_texts(source: Path) -> pl.DataFrame:
    """What a log tells of each query and model (and sample): questions, right answers, answers, as far as it does.

    Of a call log, calls that failed, or that did not go to all models, are left out.
    """
    names: dict[str, str] = {}

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model"], columns)
        plain = {plain_name(column): column for column in reversed(columns)}
        for text, synonyms in TEXTS.items():
            if (column := next((plain[one] for one in synonyms if one in plain), None)) is not None:
                names[text] = column
        marks = ("error", "shadow") if "call_log" in columns else ()
        besides = [column for column in (SAMPLE, *marks) if column in columns]
        return list(dict.fromkeys(["query", "model", *names.values(), *besides]))

    parts = []
    for frame in load(source, choose).frames:
        if "error" in frame.columns:
            frame = frame.filter(pl.col("error").is_null())
        if "shadow" in frame.columns:
            frame = frame.filter(pl.col("shadow").cast(pl.String) == "true")
        key = [pl.col(name).cast(pl.String) for name in ("query", "model", SAMPLE) if name in frame.columns]
        parts.append(frame.select(*key, *(_joined(frame, column).alias(text) for text, column in names.items())))
    return pl.concat(parts)


def _joined(frame: pl.DataFrame, column: str) -> pl.Expr:
    """A column as texts; of several right answers any one."""
    several = isinstance(frame.schema[column], pl.List)
    return pl.col(column).cast(pl.List(pl.String)).list.join(" or ") if several else pl.col(column).cast(pl.String)


def write_sheet(path: str | os.PathLike[str], sheet: pl.DataFrame) -> None:
    """Write a table whole, in CSV, for its owner alone to read.

    A cell that a spreadsheet would run stands behind an apostrophe; what a terminal would obey in a text is replaced.
    """
    text, words = (
        pl.col(pl.String),
        pl.selectors.string() - pl.selectors.by_name("query", "model", SAMPLE, require_all=False),
    )
    sheet = sheet.with_columns(words.str.replace_all(_OBEYED, "\ufffd"))
    guarded = pl.when(_runs(text)).then(text.str.replace("^", "'")).otherwise(text)
    write_atomically(path, sheet.with_columns(guarded).write_csv(), private=True)


#: Control characters that a terminal obeys, but for tabs and ends of lines, and those that turn a text's direction.
_OBEYED = r"[\x01-\x08\x0b\x0c\x0e-\x1f\x{80}-\x{9f}\x{202a}-\x{202e}\x{2066}-\x{2069}]"


def plain_cells(sheet: pl.DataFrame) -> pl.DataFrame:
    """A table with what the cells of `write_sheet` were made of."""
    text = pl.col(pl.String)
    bare = text.str.strip_prefix("'")
    return sheet.with_columns(pl.when(text.str.starts_with("'") & _runs(bare)).then(bare).otherwise(text))


def _runs(text: pl.Expr) -> pl.Expr:
    return text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)


def read_sheet(path: Path) -> pl.DataFrame:
    """A table that is there already, with the columns that a person has added. LogError where it is none."""

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model", "correct"], columns)
        return columns

    frames = [plain_cells(frame) for frame in load(path, choose).frames]
    return pl.concat(frames).filter(pl.col("query").is_not_null())
