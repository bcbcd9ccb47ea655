"""Tables that accompany a log: labels, answers, and the sheet in which a person labels answers.

A sheet holds answers drawn at random, one per row, with an empty column `correct`. It was tried to draw more often the
answers that policies depend on: the gain was not distinguishable from noise.
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
from rcjax.logs.answers import NO_HASH, comparison_form, hash_answers
from rcjax.logs.checked_rows import Rows, labels_as_texts, numbers, require_names
from rcjax.logs.columns import (
    ANSWERS,
    PROMPT_DIGEST,
    RIGHT_OR_WRONG,
    SAMPLE,
    Scoring,
    plain_name,
    require_columns,
    suggest_columns,
)
from rcjax.logs.errors import LogError, contrast_names, join_names, shorten
from rcjax.logs.sources import load_table
from rcjax.policy.decisions import AnswerForm
from rcjax.policy.signals import normalise_answer

if TYPE_CHECKING:
    from rcjax.logs.log import Log

_LABEL_TABLES = "give a table of query and answer (the right one), or of query, model and correct"

_MIN_COMPARED = 6  # answers (three queries of two models) of which at least one should equal a label


class Labels(NamedTuple):
    """Labels of some answers of a log."""

    kind: str
    """Kind of label: "correct" for scores of models' answers, "answer" for right answers to queries."""
    name: str
    """Name of the table, for messages."""
    frame: pl.DataFrame
    """Distinct labels: `query`, `model`, perhaps `sample`, and `correct` (0 to 1); or `query` and `words`."""
    authors: tuple[str, ...] = ()
    """Models that the table names as the authors of right answers."""


def read_labels(source: Any, log: Any, scoring: Scoring = RIGHT_OR_WRONG) -> Labels:
    """Read the labels of a log from a file or dataframe with columns query, model, correct, or query, answer.

    `correct` may hold scores on the scale of `scoring`; it is empty for an answer without a label. A column `sample`
    tells several answers of a model to a query apart.

    Raises `LogError` if a column is missing, another cell is empty, labels contradict each other, or the table is the
    log itself, whose answers are the models' own.
    """
    are_paths = isinstance(source, str | os.PathLike) and isinstance(log, str | os.PathLike)
    if source is log or (
        are_paths and os.path.exists(source) and os.path.exists(log) and os.path.samefile(source, log)
    ):
        name = os.path.basename(source) if isinstance(source, str | os.PathLike) else "labels"
        advice = "a log that has a column correct needs no labels; to have its answers judged"
        raise LogError(f"{name}: the labels are the log itself: {advice}, {_LABEL_TABLES}")
    table = load_table(source, _label_columns)
    texts = cs.by_name("query", "model", SAMPLE, "answer", require_all=False).cast(pl.String)
    frames = [plain_cells(frame).with_columns(texts, *labels_as_texts(frame, scoring)) for frame in table.frames]
    frame = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame({"query": [], "answer": []})
    if "model" not in frame.columns:
        frame = frame.with_columns(model=pl.lit(None, pl.String))
    rows = Rows(table.name, table.source, frame, np.arange(frame.height), scoring)
    if "answer" not in frame.columns:
        require_names(rows)
        return Labels("correct", table.name, _distinct_labels(rows))
    for column in ("query", "answer"):
        rows.refuse(frame[column].is_null(), column, "is missing: give the query, and a right answer to it")
    words = frame.select("query", words=normalise_answers(frame["answer"])).unique(maintain_order=True)
    return Labels("answer", table.name, words, tuple(frame["model"].drop_nulls().unique()))


def _distinct_labels(rows: Rows) -> pl.DataFrame:
    """Return the distinct labelled rows, with labels as numbers; LogError if labels contradict each other."""
    frame = rows.frame.with_columns(correct=pl.Series(numbers(rows, "correct", optional=True)).fill_nan(None))
    labelled = frame.drop_nulls("correct").unique(maintain_order=True)
    if frame.height and not labelled.height:
        raise LogError(f"{rows.name}: none of its {frame.height:,} rows has a label: fill in the column correct")
    contradicting = labelled.filter(pl.struct(pl.exclude("correct")).is_duplicated())
    if contradicting.height:
        query, model = contradicting.select("query", "model").row(0)
        labels = contradicting.filter((pl.col("query") == query) & (pl.col("model") == model))["correct"]
        labelling = "right and wrong" if labels.is_in([0.0, 1.0]).all() else "with several scores"
        place = f"{rows.name}: query {shorten(query)}, model {shorten(model)}"
        raise LogError(f"{place} is labelled {labelling}: give one label")
    return labelled


def _label_columns(name: str, columns: list[str]) -> list[str]:
    by_answer = "answer" in columns and "correct" not in columns
    if by_answer and "call_log" in columns:
        raise LogError(f"{name}: the labels are a call log, whose answers are the models' own: {_LABEL_TABLES}")
    needed = ["query", "answer"] if by_answer else ["query", "model", "correct"]
    if missing := [column for column in needed if column not in columns]:
        problem = f"no column{'s' * (len(missing) > 1)} {', '.join(missing)}{suggest_columns(missing, columns)}"
        raise LogError(f"{name}: {problem}: {_LABEL_TABLES}; found: {join_names(columns)}")
    if by_answer:
        return ["query", *(["model"] if "model" in columns else []), "answer"]
    return ["query", "model", "correct", *[SAMPLE] * (SAMPLE in columns and "call_log" not in columns)]


def normalise_answers(answers: pl.Series) -> pl.Series:
    """Return answers in the form that is compared with labels: without regard to case and white space."""
    texts = answers.unique()
    return answers.replace_strict(texts, [text and normalise_answer(text) for text in texts], return_dtype=pl.String)


def join_labels(frame: pl.DataFrame, labels: Labels, name: str, models: Sequence[str]) -> pl.DataFrame:
    """Join the rows of a log with their labels: a column `label` from 0 to 1, NaN for a row without a label.

    A query may have several right answers. A row without an answer is wrong if its query has a right answer.
    Raises `LogError` if no label belongs to the log, or models of the log gave the right answers.

    Args:
        frame: rows with `query`, `model` and perhaps `sample`; for right answers also `words`, the normalised answer.
        labels: labels as `read_labels` returns them.
        name: name of the log, for messages.
        models: names of all models of the log.
    """
    if authors := sorted({*labels.authors} & {*models}):
        problem = f"its answers are those of {join_names(authors)}, whose answers are to be labelled"
        raise LogError(f"{labels.name}: {problem}: {_LABEL_TABLES}; if they are right, leave out the column model")
    label = _labels_by_answer(frame, labels, name) if labels.kind == "answer" else _labels_by_model(frame, labels, name)
    if label.is_null().all():
        label_models = labels.frame["model"] if labels.kind == "correct" else ()
        contrast = contrast_names([frame["query"], models], [labels.frame["query"], label_models])
        raise LogError(f"{name}: no row has a label in {labels.name}: {contrast}")
    return frame.with_columns(label=label.fill_null(np.nan))


def _labels_by_model(frame: pl.DataFrame, labels: Labels, name: str) -> pl.Series:
    """Look up the labels of rows by query, model and, if the log has samples, sample number."""
    key = [column for column in labels.frame.columns if column != "correct"]
    if (SAMPLE in frame.columns) != (SAMPLE in key):
        problem = "labels by query and model do not tell samples apart"
        if SAMPLE in key:
            problem = f"{labels.name} tells samples apart, and the log has no column {SAMPLE}"
        advice = f"label by query and answer, or by query, model, {SAMPLE} and correct where the log has samples"
        raise LogError(f"{name}: {problem}: {advice}")
    return frame.select(key).join(labels.frame, on=key, how="left", maintain_order="left")["correct"]


def _labels_by_answer(frame: pl.DataFrame, labels: Labels, name: str) -> pl.Series:
    """Label rows by comparing their answers with the right answers to their queries, or to queries of equal prompts."""
    if frame["words"].is_null().all():
        advice = "give labels by query, model and correct"
        raise LogError(f"{name}: no row has an answer to compare with {labels.name}: {advice}")
    prompt = pl.coalesce(name for name in (PROMPT_DIGEST, "query") if name in frame.columns)
    asked, key = frame.select("query", "words", prompt=prompt), ["prompt", "words"]
    prompts = asked.select("query", "prompt").unique()
    right = labels.frame.join(prompts, on="query").select(key).unique().with_columns(right=1.0)
    equal = asked.join(right, on=key, how="left", maintain_order="left")
    has_right_answer = pl.col("prompt").is_in(right["prompt"].implode())
    rows = equal.with_columns(right=pl.when(has_right_answer).then(pl.col("right").fill_null(0.0)))
    answered = rows.drop_nulls()
    if answered.height >= _MIN_COMPARED and not answered["words"].is_in(right["words"].implode()).any():
        query, answer, prompt, _ = answered.row(0)
        example = f"query {shorten(query)}: label {right.filter(prompt=prompt)['words'].min()}, answer {answer}"
        raise LogError(f"{labels.name}: no label equals any answer ({example}): write labels and answers alike")
    return rows["right"]


# -- answers


def join_answers(frame: pl.DataFrame, source: Any, name: str, task: str) -> tuple[pl.DataFrame, AnswerForm]:
    """Replace the answers of a log by the answers in a table; return the rows and the kind of comparison.

    An empty cell is an unknown answer. Raises `LogError` if a column is missing, a row has no query or model, a model
    has two different answers to a query, or no answer belongs to the log.

    Args:
        frame: rows with `query` and `model`.
        source: a file or dataframe with columns query, model, and answer or answer_key.
        name: name of the log, for messages.
        task: "generation" or "choice".
    """

    def choose(name: str, columns: list[str]) -> list[str]:
        needed = ["query", "model", next((column for column in ANSWERS if column in columns), "answer")]
        require_columns(name, needed, columns)
        return needed

    table, key = load_table(source, choose), ["query", "model"]
    if SAMPLE in frame.columns:
        problem = f"a table of answers does not tell the samples of {name} apart"
        raise LogError(f"{table.name}: {problem}: put a column answer into the log itself")
    parts = [part.with_columns(pl.all().cast(pl.String)) for part in table.frames]
    answers = pl.concat(parts) if parts else pl.DataFrame({"query": [], "model": [], "answer": []})
    column = answers.columns[-1]
    rows = Rows(table.name, table.source, answers, np.arange(answers.height))
    require_names(rows)
    compare = comparison_form(column, task)
    codes = answers.select(*key, answer=pl.Series(hash_answers(answers[column], compare)))
    is_different = codes.select(pl.col("answer") != pl.col("answer").first().over(key)).to_series()
    rows.refuse(is_different, column, "is another answer to the query than in an earlier row: keep one of them")
    codes = codes.unique(key, keep="first")
    joined = frame.drop("answer", strict=False).join(codes, on=key, how="left", maintain_order="left")
    if not (joined["answer"].fill_null(NO_HASH) != NO_HASH).any():
        contrast = contrast_names([frame["query"], frame["model"]], [codes["query"], codes["model"]])
        raise LogError(f"{name}: no row has an answer in {table.name}: {contrast}")
    return joined.with_columns(pl.col("answer").fill_null(NO_HASH)), compare


# -- sheets


#: Names of a log's columns of texts, by canonical name; the first one present is used.
TEXTS = {
    "question": ("question", "prompt", "input"),
    "right_answer": ("right_answer", "reference"),
    "answer": ("text", "answer", "response", "output"),
}

# A cell that a spreadsheet may run as a formula begins so, perhaps after blanks and invisible characters.
_FORMULA = r"^'*(?:[\s\x00-\x20\x7f\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]|[\t\r\n])"
_NUMBER = r"^[+-]?\d+(?:[.,]\d+)*\s?%?$"


def draw_answers(log: Log, number: int, seed: int = 0) -> list[tuple[int, int]]:
    """Draw `number` answers without a label, or all; return their (query, model) positions.

    All models end up with equally many labels if possible, and all unlabelled answers of a model are equally likely.
    The order is random, so that labels up to any place are a random sample; the answers to a query stand together.
    Raises `LogError` if every answer has a label.
    """
    unlabelled = np.asarray(log.answered) & ~log.labelled
    labels = log.labelled.sum(0)
    if not unlabelled.any():
        raise LogError(f"{log.source}: every answer has a label already")
    sizes, max_sizes, rng = np.zeros(len(labels), int), unlabelled.sum(0), np.random.default_rng(seed)
    for _ in range(min(number, int(unlabelled.sum()))):
        sizes[np.where(sizes < max_sizes, labels + sizes, np.inf).argmin()] += 1
    columns = zip(unlabelled.T, sizes, strict=True)
    queries_by_model = (rng.choice(np.flatnonzero(column), size, replace=False) for column, size in columns)
    drawn = [(int(query), model) for model, queries in enumerate(queries_by_model) for query in queries]
    rng.shuffle(drawn)
    place = rng.permutation(log.n_queries)
    return sorted(drawn, key=lambda answer: place[answer[0]])


def refuse_scores(log: Log) -> None:
    """Raise `LogError` if the labels of a log are scores: a sheet holds 1 or 0."""
    if log.scores is not None:
        problem = "its labels are scores, and labels by hand are 1 or 0: give more scores by --labels"
        raise LogError(f"{log.source}: {problem}, or make all of it 1 or 0")


def label_sheet(log: Log, to_label: Sequence[tuple[int, int]], texts: pl.DataFrame) -> pl.DataFrame:
    """Return a sheet with the (query, model) positions to label, then the labelled answers, and their `answer_texts`.

    Empty columns are left out. Raises `LogError` if the labels of the log are scores.
    """
    refuse_scores(log)
    labelled = [(int(query), int(model)) for query, model in zip(*np.nonzero(log.labelled), strict=True)]
    cells = [*to_label, *labelled]
    correct = np.asarray(log.correct)
    samples = log.hand_labels and log.hand_labels.samples
    columns = {
        "query": [str(log.queries[query]) for query, _ in cells],
        "model": [log.models[model] for _, model in cells],
        **({} if samples is None else {SAMPLE: [str(samples[cell]) for cell in cells]}),
    }
    key = [name for name in columns if name in texts.columns]
    sheet = pl.DataFrame(columns).join(texts.unique(key, keep="first"), on=key, how="left", maintain_order="left")
    text_columns = [name for name in TEXTS if name in sheet.columns and sheet[name].fill_null("").ne("").any()]
    labels = [*[None] * len(to_label), *(str(int(correct[cell])) for cell in labelled)]
    return sheet.select(*columns, *text_columns, pl.Series("correct", labels, pl.String))


def answer_texts(source: Path) -> pl.DataFrame:
    """Read the texts of a log by query and model (and sample): questions, right answers and answers, if present.

    Failed calls of a call log, and calls of queries that did not go to all models, are left out.
    """
    names: dict[str, str] = {}

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model"], columns)
        spellings = {plain_name(column): column for column in reversed(columns)}
        for text, synonyms in TEXTS.items():
            if (column := next((spellings[synonym] for synonym in synonyms if synonym in spellings), None)) is not None:
                names[text] = column
        filters = ("error", "shadow") if "call_log" in columns else ()
        further = [column for column in (SAMPLE, *filters) if column in columns]
        return list(dict.fromkeys(["query", "model", *names.values(), *further]))

    parts = []
    for frame in load_table(source, choose).frames:
        if "error" in frame.columns:
            frame = frame.filter(pl.col("error").is_null())
        if "shadow" in frame.columns:
            frame = frame.filter(pl.col("shadow").cast(pl.String) == "true")
        key = [pl.col(name).cast(pl.String) for name in ("query", "model", SAMPLE) if name in frame.columns]
        parts.append(frame.select(*key, *(_as_texts(frame, column).alias(text) for text, column in names.items())))
    return pl.concat(parts)


def _as_texts(frame: pl.DataFrame, column: str) -> pl.Expr:
    """Return a column as texts; a list of right answers is joined with "or"."""
    is_list = isinstance(frame.schema[column], pl.List)
    return pl.col(column).cast(pl.List(pl.String)).list.join(" or ") if is_list else pl.col(column).cast(pl.String)


def write_sheet(path: str | os.PathLike[str], sheet: pl.DataFrame) -> None:
    """Write a table atomically as CSV that only its owner may read.

    An apostrophe guards a cell that a spreadsheet would run; control characters that a terminal obeys are replaced.
    """
    text = pl.col(pl.String)
    words = pl.selectors.string() - pl.selectors.by_name("query", "model", SAMPLE, require_all=False)
    sheet = sheet.with_columns(words.str.replace_all(_CONTROLS, "\ufffd"))
    guarded = pl.when(_is_formula(text)).then(text.str.replace("^", "'")).otherwise(text)
    write_atomically(path, sheet.with_columns(guarded).write_csv(), private=True)


#: Control characters that a terminal obeys, except tabs and newlines, and the marks of the direction of text.
_CONTROLS = r"[\x01-\x08\x0b\x0c\x0e-\x1f\x{80}-\x{9f}\x{202a}-\x{202e}\x{2066}-\x{2069}]"


def plain_cells(sheet: pl.DataFrame) -> pl.DataFrame:
    """Undo the apostrophes of `write_sheet`."""
    text = pl.col(pl.String)
    unguarded = text.str.strip_prefix("'")
    return sheet.with_columns(
        pl.when(text.str.starts_with("'") & _is_formula(unguarded)).then(unguarded).otherwise(text)
    )


def _is_formula(text: pl.Expr) -> pl.Expr:
    return text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)


def read_sheet(path: Path) -> pl.DataFrame:
    """Read an existing sheet, with all columns that a person has added; LogError if the file is no sheet."""

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model", "correct"], columns)
        return columns

    frames = [plain_cells(frame) for frame in load_table(path, choose).frames]
    return pl.concat(frames).filter(pl.col("query").is_not_null())
