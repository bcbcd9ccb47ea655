"""The evaluations of other programs as one table for `read_log`, with a row per query and model.

`collect_answers` collects the answers of all files by model and query; unreadable parts are left out and reported.
"""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from rcjax._base.figures import count, describe_missing_confidences
from rcjax._base.files import write_atomically
from rcjax.logs.columns import ANSWERS, CACHED, TOKENS, WORDS, Scoring
from rcjax.logs.errors import LeftOutWarning, LogError, join_names, shorten, suggest_name, warn_caller
from rcjax.logs.importing.api_logs import BATCHES, LITELLM
from rcjax.logs.importing.harnesses import HELM, INSPECT, LM_EVAL, PROMPTFOO
from rcjax.logs.importing.lines import (
    CHARACTERS,
    TABLE,
    WIDE,
    DamageError,
    Format,
    ImportFields,
    ImportOptions,
    Line,
    require,
    require_sound,
    without_confidence,
)
from rcjax.logs.sources import TABLES
from rcjax.policy.decisions import canonical_answer
from rcjax.policy.signals.answers import canonical_json
from rcjax.serving.call_log import has_failed

#: All formats, in the order in which they are tried; the last one recognises any table.
FORMATS: tuple[Format, ...] = (INSPECT, LM_EVAL, HELM, PROMPTFOO, LITELLM, BATCHES, WIDE, TABLE)

_HEAD = 1 << 16

_SUFFIXES = (".eval", ".json", *TABLES)


def collect_answers(
    paths: Sequence[str | os.PathLike[str]], options: ImportOptions
) -> tuple[dict[str, dict[str, list[Line]]], tuple[str, ...]]:
    """Read files and folders; return (lines by model and query, messages about unreadable parts).

    The models have their final names. The lines of a query are in the order of their sample numbers.

    Raises LogError if an option is missing or wrong, or no line can be read.
    """
    require(bool(paths), "no files", "give at least one")
    options = replace(options, table_columns=set())  # of these files, not of earlier ones
    lines, unreadable, answers = list[Line](), list[str](), dict[str, dict[str, list[Line]]]()
    for path in _find_files([Path(path) for path in paths]):
        require(path.is_file(), f"{path} is missing", "give a file")
        damaged, before = list[str](), len(lines)
        for line in _read(path, options):
            if isinstance(line, DamageError):
                damaged.append(str(line))
            else:
                lines.append(line | {"place": path.name})
        # One message is enough for a file without a readable line.
        unreadable += damaged if len(lines) > before else damaged[:1]
    table_columns = options.table_columns
    for name, column in options.columns.items() if table_columns else ():
        hint = suggest_name(column, table_columns)
        problem = f"no table has this column{hint}; there are {join_names(sorted(table_columns))}"
        require(column in table_columns, f"--column {name}={shorten(column)}", problem)
    if not lines and unreadable:
        raise DamageError(unreadable[0])
    names = _final_names([*dict.fromkeys(line["model"] for line in lines)], options.rename)
    for line in lines:
        line["model"] = names[line["model"]]
        _insert_sample(answers.setdefault(line["model"], {}).setdefault(line["query"], []), line)
    return answers, tuple(unreadable)


def _read(path: Path, options: ImportOptions) -> Iterator[Line | DamageError]:
    """Yield the lines of a file, then the damage if the file, or its rest, cannot be read."""
    by_name = {form.name: form for form in FORMATS}
    is_known = options.format is None or options.format in by_name
    require(is_known, f"format {options.format!r:.60}", f"is unknown: choose {', '.join(by_name)}")
    try:
        yield from (detect_format(path) if options.format is None else by_name[options.format]).read(path, options)
    except DamageError as damage:
        yield damage


def detect_format(path: Path) -> Format:
    """Return the format of a file, by its content. Raises DamageError for an unknown format or an empty file."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as problem:
        raise DamageError(f"{path}: cannot be read: {problem.strerror}: give a file") from None
    require_sound(bool(head), path.name, "the file is empty: was it written completely?")
    for form in FORMATS:
        if form.recognises(path, head):
            return form
    names = ", ".join(form.files for form in FORMATS)
    raise DamageError(f"{path.name}: unknown format: give a file of {names}, or --format")


def _find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the paths, with each folder replaced by the evaluations in it, sorted."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in _SUFFIXES and file.is_file()]
        recognised = [file for file in inside if _is_evaluation(file)]
        require(bool(recognised), str(path), "no file in this folder has a known format")
        files += recognised
    return files


def _is_evaluation(file: Path) -> bool:
    """Return whether a file in a folder is an evaluation, even a damaged one. (A user must name tables.)"""
    try:
        return file.suffix.lower() == ".eval" or detect_format(file) is not TABLE
    except LogError:
        return False


def _insert_sample(samples: list[Line], line: Line) -> None:
    """Insert a line into the samples of its model and query, by number; LogError for a number that occurs twice."""
    line["sample"] = line.get("sample") or len(samples) + 1
    first = next((other for other in samples if other["sample"] == line["sample"]), None)
    if first is not None:
        place = f"{line['place']}, model {shorten(line['model'])}, query {shorten(line['query'])}"
        raise LogError(f"{place}: was answered already in {first['place']}: leave one of the two out")
    samples.append(line)
    samples.sort(key=lambda sample: sample["sample"])


def _final_names(models: list[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Return the final names of models: the new name, or else the name without its provider if that stays unique.

    Two models with the same new name become one model.

    >>> _final_names(["openai/gpt-4o-mini", "a/small", "b/small"], {"b/small": "tiny"})
    {'openai/gpt-4o-mini': 'gpt-4o-mini', 'a/small': 'small', 'b/small': 'tiny'}
    """
    short = {model: model.rpartition("/")[2] or model for model in models}
    matches = {name: [model for model in models if name in (model, short[model])] for name in rename}
    for name, columns in matches.items():
        problem = (
            f"several models, {join_names(columns)}" if columns else f"no model{suggest_name(name, models)}; there are "
        )
        require(len(columns) == 1, f"rename {shorten(name)}", f"names {problem}{'' if columns else join_names(models)}")
    renamed = {columns[0]: rename[name] for name, columns in matches.items()}
    counts = Counter(short[model] for model in models if model not in renamed)
    return {m: renamed.get(m, short[m] if counts[short[m]] == 1 else m) for m in models}


#: Sources of an answer's confidence, in words.
SIGNALS = {
    "own": "what the table says",
    "lm-eval": "the likelihood of the choice among all choices, or the share of the repeats that agree",
    "choice": "the probability of the choice made",
    "mean": "the mean log-probability of the tokens",
}

_NO_SIGNAL = "1 for each answer, as the files have none: only whether answers agree counts"
_QUOTED = 3  # number of unreadable parts that a warning quotes

#: APIs' finish reasons of a reply that a limit of tokens has truncated.
_CUT = ("length", "max_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Evaluations:
    """A table of imported answers, with notes about it."""

    frame: pl.DataFrame
    """Table with `query`, `model`, `correct`, `logprob`, and `cost` (0 if lost, empty for a model without costs), or
    `input_tokens` and `output_tokens`, or all three.

    `correct` is empty if the files have no labels. The column is `score`, from 0 to 1, if some scores lie strictly
    between. `answer`, `seconds` and `sample` are present if the files have answers, latencies, or several answers of a
    model to a query."""
    assumed: tuple[str, ...]
    """Sentences about the meaning of the confidences, and other assumptions."""
    left_out: str | None = None
    """Numbers of the answers left out, with reasons; None if all are kept."""
    unreadable: tuple[str, ...] = ()
    """Messages about unreadable files and parts of files."""

    @property
    def has_letters(self) -> bool:
        """Whether there are answers, and each is a letter, as that of a choice."""
        answers = self.frame["answer"].drop_nulls() if "answer" in self.frame.columns else pl.Series(dtype=pl.String)
        return bool(len(answers) and answers.str.contains("^[A-Z]$").all())

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the assumptions and the answers left out."""
        return self.assumed if self.left_out is None else (*self.assumed, self.left_out)

    @property
    def damage(self) -> str | None:
        """Number of unreadable files and parts of files, and the first of them; None if all were read."""
        parts = self.unreadable
        if not parts:
            return None
        omitted = f"; and {len(parts) - _QUOTED:,} more" if len(parts) > _QUOTED else ""
        return f"left out, as {len(parts):,} cannot be read: {'; '.join(parts[:_QUOTED])}{omitted}"


def read_evaluations(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **choices: Unpack[ImportFields]
) -> pl.DataFrame:
    """Read evaluations of other programs into one table for `read_log`, with a row per query and model.

    The formats are those of Inspect AI, lm-evaluation-harness, HELM, promptfoo, LiteLLM and OpenAI's batches, and
    tables with columns of any name; see the page [From evaluations](importing.md). The column `answer` holds the
    answers. If a model answered a query several times (epochs, repeats), each answer has a row, with its number in the
    column `sample`. `correct` is empty if the files have no labels; the column is `score`, from 0 to 1, if some scores
    lie strictly between. A `LeftOutWarning` counts the answers left out (failed, or without a score), another
    `LeftOutWarning` the unreadable files and samples.

    Args:
        files: paths of files, or of folders of files.
        choices: fields of `ImportOptions`: `format`, `scorer`, `score_max`, `rename`, `columns`, `prompts`.

    Raises LogError if a file cannot be used, or a model's answers have neither a confidence nor a text to compare.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = path.write_text("id,engine,ok,confidence,cost\\n1,org/small,yes,0.9,2\\n1,org/large,no,0.7,9\\n")
    >>> read_evaluations(path, columns={"query": "id", "model": "engine", "correct": "ok"}).to_dicts()[0]
    {'query': '1', 'model': 'small', 'correct': 1, 'logprob': -0.105..., 'cost': 2.0}
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    evaluations = import_evaluations(paths, ImportOptions(**choices))
    for remark in filter(None, (evaluations.left_out, evaluations.damage)):
        warn_caller(remark, LeftOutWarning)
    return evaluations.frame


def import_evaluations(paths: Sequence[str | os.PathLike[str]], options: ImportOptions) -> Evaluations:
    """Read files of evaluations like `rcjax.logs.importing.read_evaluations`, with notes in place of warnings.

    Raises ValueError for a full score that is not a positive number.
    """
    scoring = Scoring(options.score_max).check()
    answers, unreadable = collect_answers(paths, options)
    left_out: Counter[str] = Counter()
    rows: list[Line] = []
    by_signal: dict[str | None, list[str]] = {}
    sampled: list[str] = []
    for model, queries in answers.items():
        sound = _sound_lines(queries, left_out)
        if len({line["query"] for line in sound}) < len(sound):
            sampled.append(model)
        signal = _signal(model, sound)
        by_signal.setdefault(signal, []).extend([model] if sound else [])
        rows += _model_rows(sound, signal, options, left_out)
    if not rows:
        reason = _reasons(left_out) or f"none has a score of {options.scorer!r:.60}: choose another scorer"
        raise LogError(f"no answer can be used: {reason}" if answers else "no answers in the files")
    scored = [row["correct"] for row in rows if row["correct"] is not None]
    scoring.require_scale("the files", np.array(scored, float))
    frame, notes = build_frame(rows, options, sampled=bool(sampled))
    if sampled:
        fact = f"{join_names(sampled)} answered each query several times: each answer has a row, with its sample number"
        notes.append(f"{fact}, and the share of equal answers becomes the confidence")
    signals = [
        f"the confidence of {join_names(models)} is {_NO_SIGNAL if signal is None else SIGNALS[signal]}"
        for signal, models in by_signal.items()
        if models
    ]
    return Evaluations(
        frame,
        (*signals, *_compare_names(answers), *notes, *_remarks(rows, options)),
        f"{count(sum(left_out.values()), 'answer')} left out: {_reasons(left_out)}" if left_out else None,
        unreadable,
    )


def _compare_names(models: Iterable[str]) -> list[str]:
    """Return a sentence for each pair of names that may belong to the same model."""
    first: dict[str, str] = {}
    names = [(model, first.setdefault(model.rpartition("/")[2].casefold(), model)) for model in models]
    advice = "count as two models; if they are one model, give --rename"
    return [f"{other} and {model} {advice} {model}={other}" for model, other in names if model != other]


def _sound_lines(queries: Mapping[str, list[Line]], left_out: Counter[str]) -> list[Line]:
    """Return the lines without failures: all samples if most queries have several samples, else the first of each."""
    left_out.update(str(line["error"]) for samples in queries.values() for line in samples if has_failed(line))
    sound = [[line for line in samples if not has_failed(line)] for samples in queries.values()]
    sound = [samples for samples in sound if samples]
    repeated = [len(samples) - 1 for samples in sound if samples[1:]]
    if 2 * len(repeated) > len(sound):
        return [sample for samples in sound for sample in samples]
    if repeated:
        left_out["repeated: the query has an answer already"] += sum(repeated)
    return [samples[0] for samples in sound]


def _signal(model: str, lines: Sequence[Line]) -> str | None:
    """Return the most common signal of a model's answers; None if no answer has a confidence.

    Raises LogError if the lines have neither a confidence nor an answer to compare.
    """
    signals = Counter(line["signal"] for line in lines if line.get("logprob") is not None)
    if signals or not lines or any(line.get(name) for line in lines for name in ANSWERS):
        return max(signals, key=signals.__getitem__, default=None)
    unusable = Counter(line["error"] for line in lines if line.get("error"))
    reason = f" ({_causes(unusable)})" if unusable else ""
    problem = f"model {shorten(model)}: no confidence can be read from its {count(len(lines), 'answer')}{reason}"
    advice = "run the evaluation again with log-probabilities (of Inspect: --logprobs, for choices --top-logprobs 5)"
    raise LogError(f"{problem}: {advice}, or with several samples of each answer (epochs, repeats), whose votes count")


def _model_rows(
    lines: Sequence[Line], signal: str | None, options: ImportOptions, left_out: Counter[str]
) -> list[Line]:
    """Return the rows of a model, and count the answers left out by reason."""
    rows = []
    for line in lines:
        place = f"{line['place']}, model {line['model']}, query {shorten(line['query'])}"
        label = score_to_label(line.get("correct"), options.score_max, place)
        if label is None and "correct" in line:
            left_out["without a score"] += 1
            continue
        logprob = 0.0 if signal is None else line.get("logprob") if line.get("signal") == signal else None
        if logprob is None and line.get("logprob") is not None:
            line |= without_confidence(f"the files have only {SIGNALS[line['signal']]}")
        texts = {name: line.get(name) or "" for name in ANSWERS}
        texts = {name: canonical_json(text) or " ".join(text.split()) for name, text in texts.items()}  # of one line
        answers = {name: text if canonical_answer(text, "text") else None for name, text in texts.items()}
        no_answer = next((text for name, text in texts.items() if text and not answers[name]), None)
        rows.append(line | {"correct": label, "logprob": logprob, "lacks": no_answer, **answers})
    return rows


def _remarks(rows: Sequence[Line], options: ImportOptions) -> list[str]:
    """Return sentences about missing confidences and labels, truncated answers and scores."""
    truncated = Counter(row["model"] for row in rows if row.get("finish") in _CUT)
    unscored = [row for row in rows if row["logprob"] is None]
    reasons = Counter(row["error"] if row.get("has_no_confidence") else "the files have none" for row in unscored)
    missing = describe_missing_confidences((row["model"], row["correct"]) for row in unscored)
    remarks = [f"{missing} ({_causes(reasons)})"] if unscored else []
    for model, file in {row["model"]: row["guessed_by"] for row in rows if row.get("guessed_by")}.items():
        if model not in options.rename.values():
            guess = f"{model} is the name of a folder, as no results_*.json beside {file} names the model"
            remarks.append(f"{guess}: if it is another one, give --rename {model}=…")
    remarks += [f"{count(n, 'answer')} of {model} ended at a limit of tokens" for model, n in truncated.items()]
    for model, number in Counter(row["model"] for row in rows if row["lacks"]).items():
        example = next(row["lacks"] for row in rows if row["lacks"] and row["model"] == model)
        fact = f"{count(number, 'answer')} of {model} say that there is no answer ({shorten(example)})"
        remarks.append(f"{fact}: they agree with no other answer")
    if unlabelled := sum(row["correct"] is None for row in rows):
        fact = f"the files have no labels of {count(unlabelled, 'answer')}: the column correct is empty"
        remarks.append(f"{fact}; give labels by --labels, or label by hand (rcjax label)")
    if any(row["correct"] not in (None, 0, 1) for row in rows):
        names = sorted({row["scorer"] for row in rows if row.get("scorer")})
        scorers = f", by {join_names(names)}," if names else ""
        full = "" if options.score_max == 1 else f", {options.score_max:g} as 1"
        remarks.append(f"scores from 0 to 1{scorers} are in the column score{full}")
    return remarks


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {reason}" for reason, number in left_out.items())


def _causes(answers: Mapping[str, int]) -> str:
    return "; ".join(f"{sentence}: {number:,}" for sentence, number in answers.items())


_ROUNDING = 1e-9  # rounding error of a mean of full scores


def score_to_label(score: Any, most: float, place: str) -> float | None:
    """Convert a score, a word, a bool or a number, to a label from 0 (wrong) to 1 (right); None for None and NaN.

    Raises LogError, with the place, for a score below 0 or above the full score `most`, and for a value that is no
    score.

    >>> score_to_label("yes", 1, "a"), score_to_label(7, 10, "a")
    (1.0, 0.7)
    """
    word = score.strip().lower() if isinstance(score, str) else score
    word = WORDS.get(word, word) if isinstance(word, str) else word
    try:
        value = math.nan if word is None else most * word if isinstance(word, bool) else float(word)
    except (TypeError, ValueError):
        problem = "is neither a number nor a word such as yes or no: put one there"
        raise LogError(f"{place}: the score {score!r:.60} {problem}") from None
    if math.isnan(value):
        return None
    share = value / most
    if not -_ROUNDING <= share <= 1 + _ROUNDING:
        problem = f"is on another scale than 0 to {most:g}: give the full score, with --score-max 10 (score_max=10)"
        raise LogError(f"{place}: the score {score!r:.60} {problem}")
    return float(round(share)) if abs(share - round(share)) <= _ROUNDING else share


def build_frame(rows: list[Line], options: ImportOptions, *, sampled: bool) -> tuple[pl.DataFrame, list[str]]:
    """Turn rows, whose `correct` is a label, into a frame with tokens, costs or both; return (frame, remarks).

    If a model is `sampled`, with several answers to a query, there is a column of their numbers. Raises LogError if
    some model has no cost, and some row no tokens, not even estimated ones.
    """
    notes = list[str]()
    models = dict.fromkeys(row["model"] for row in rows)
    priced = {row["model"] for row in rows if row.get("cost") is not None}
    if estimated := sum(bool(row.get("estimated")) for row in rows):
        origin = f"estimated, {CHARACTERS:g} characters each"
        notes.append(f"the files have no token counts of {count(estimated, 'answer')}: they are {origin}")
    counted = all(row.get(name) is not None for row in rows for name in TOKENS)
    for row in rows if priced else ():  # `read_log` replaces a cost of 0 by the mean of the model's other costs
        row["cost"] = row.get("cost") or (0.0 if row["model"] in priced else None)
    if len(priced) < len(models) and counted:
        of_models = f" of {join_names(name for name in models if name not in priced)}" if priced else ""
        notes.append(f"the files have no costs{of_models}: tune with --prices")
    elif len(priced) < len(models):
        advice = "a table needs a column cost, or input_tokens and output_tokens"
        raise LogError(f"the files have neither costs nor tokens, nor texts to estimate tokens: {advice}")
    scored = any(row["correct"] not in (None, 0, 1) for row in rows)
    answers = _answer_columns(rows)
    if answers:
        notes.append(f"the answers are in the column {' and '.join(answers)}, for rcjax tune to compare")
    if "answer_key" in answers:
        fact = "answers were extracted from longer replies: a policy that compares answers needs a signal that does so"
        notes.append(f"{fact}, rcjax.Cascade(…, signal=…), and rcjax serve refuses such a policy")
    timed = any(row.get("seconds") is not None for row in rows)
    schema = {"query": pl.String, "model": pl.String, **({"sample": pl.Int64} if sampled else {})}
    schema |= {"correct": pl.Float64 if scored else pl.Int8, "logprob": pl.Float64}
    schema |= dict.fromkeys([*answers, *["prompt"] * options.prompts], pl.String)
    caches = [name for name in CACHED if counted and any(row.get(name) for row in rows)]
    schema |= dict.fromkeys([*TOKENS * counted, *caches, *["cost"] * bool(priced), *["seconds"] * timed], pl.Float64)
    frame = pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema, strict=False)
    return frame.rename({"correct": "score"}) if scored else frame, notes


def _answer_columns(rows: list[Line]) -> list[str]:
    """Return the columns of answers; if some rows have keys, the answers of the other rows become keys."""
    if not any(row.get("answer_key") for row in rows):
        return ["answer"] if any(row.get("answer") for row in rows) else []
    has_both = any(row.get("answer_key") and row.get("answer") for row in rows)
    for row in rows:
        row["answer_key"] = row.get("answer_key") or row.get("answer")
    return [*["answer"] * has_both, "answer_key"]


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame to a file atomically, in the format of its suffix; CSV if the suffix is unknown."""
    suffix, content = path.suffix.lower(), io.BytesIO()
    if suffix == ".parquet":
        frame.write_parquet(content)
    elif suffix in (".jsonl", ".ndjson"):
        frame.write_ndjson(content)
    else:
        frame.write_csv(content, separator="\t" if suffix == ".tsv" else ",")
    write_atomically(path, content.getvalue())
