"""From evaluations that other programs ran to one table with a row per query and model, as `read_log` takes it."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.files import write_atomically
from rcjax._base.wording import count, not_likeliest
from rcjax.importing.gathering import gather
from rcjax.importing.lines import CHARACTERS, How, Line, unread
from rcjax.logs.columns import ANSWERS, CACHED, TOKENS, WORDS, Scoring
from rcjax.logs.errors import LeftOutWarning, LogError, brief, listed
from rcjax.logs.oddities import tell_unread
from rcjax.policy.decisions import comparable
from rcjax.serving.call_log import has_failed
from rcjax.signals.canonical import canonical_json

#: Where the confidence of an answer may come from, in words.
SIGNALS = {
    "own": "what the table says",
    "lm-eval": "the likelihood of the choice among all choices, or the share of the repeats that agree",
    "choice": "the probability of the choice made",
    "mean": "the mean log-probability of the tokens",
}

_UNTOLD = "1 for each answer, as the files have none: only whether answers agree counts"

_QUOTED = 3  # of what cannot be read, a warning tells the first

#: How APIs call the end of a reply that a limit of tokens has cut off.
_CUT = ("length", "max_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Evaluations:
    """What was read."""

    frame: pl.DataFrame
    """`query`, `model`, `correct`, `logprob`, and `cost` (0 where a model's is not told), or `input_tokens` and
    `output_tokens`, or all three.

    `correct` is empty if files do not tell right from wrong; `score`, from 0 to 1, stands in its place where some
    answers are neither. `answer`, where files tell answers;
    `seconds` where they tell how long answers took; `sample` where a model answered queries several times."""
    assumed: tuple[str, ...]
    """What the confidences are, and what else was assumed, in sentences."""
    left_out: str | None = None
    """How many answers were left out, and why; None if all are in."""
    unreadable: tuple[str, ...] = ()
    """Of each file, or part of one, that cannot be read, what is wrong where."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what was left out."""
        return self.assumed if self.left_out is None else (*self.assumed, self.left_out)

    @property
    def damage(self) -> str | None:
        """How many files and parts of files cannot be read, and the first of them; None if all can."""
        lost = self.unreadable
        if not lost:
            return None
        more = f"; and {len(lost) - _QUOTED:,} more" if len(lost) > _QUOTED else ""
        return f"left out, as {len(lost):,} cannot be read: {'; '.join(lost[:_QUOTED])}{more}"


def read_evaluations(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **choices: Any) -> pl.DataFrame:
    """One table of evaluations that other programs ran, with a row per query and model, as `read_log` takes it.

    Formats are those of Inspect AI, lm-evaluation-harness, HELM, promptfoo, LiteLLM and OpenAI's batches, and tables
    with columns of any name; see the page [From evaluations](importing.md). What was answered is in a column `answer`.
    Where a model gave several to a query (epochs, repeats), each has a row, with a column `sample`. Where files do not
    tell right from wrong, `correct` is empty; where some answers are neither, a column `score`, from 0 to 1, stands in
    its place. Answers that are left out (failed, or without a score), and files and samples that cannot be read, are
    counted in a `LeftOutWarning`.

    Args:
        files: paths of files, or of folders of them.
        choices: what files leave open, by the names of `How`: `format`, `scorer`, `score_max`, `rename`, `columns`,
            `prompts`.

    Raises LogError where a file cannot be used, or holds no confidence: it says what would give one.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = path.write_text("id,engine,ok,confidence,cost\\n1,org/small,yes,0.9,2\\n1,org/large,no,0.7,9\\n")
    >>> read_evaluations(path, columns={"query": "id", "model": "engine", "correct": "ok"}).to_dicts()[0]
    {'query': '1', 'model': 'small', 'correct': 1, 'logprob': -0.105..., 'cost': 2.0}
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    evaluations = import_evaluations(paths, How(**choices))
    for remark in filter(None, (evaluations.left_out, evaluations.damage)):
        warnings.warn(remark, LeftOutWarning, stacklevel=2)
    return evaluations.frame


def import_evaluations(paths: Sequence[str | os.PathLike[str]], how: How) -> Evaluations:
    """Read files of evaluations, as `rcjax.importing.read_evaluations` does.

    Args:
        paths: the files, and folders of them.
        how: what their files leave a choice of.

    Raises ValueError for a full score that is none.
    """
    scoring = Scoring(how.score_max).check()
    answers, unreadable = gather(paths, how)
    left_out: Counter[str] = Counter()
    rows: list[Line] = []
    by_signal: dict[str | None, list[str]] = {}
    sampled: list[str] = []
    for model, queries in answers.items():
        used = _used(queries, left_out)
        if len({line["query"] for line in used}) < len(used):
            sampled.append(model)
        signal = _signal(model, used)
        by_signal.setdefault(signal, []).extend([model] if used else [])
        rows += _rows(used, signal, how, left_out)
    if not rows:
        why = _reasons(left_out) or f"none has a score of {how.scorer!r:.60}: choose another scorer"
        raise LogError(f"no answer can be used: {why}" if answers else "no answers in the files")
    scored = [row["correct"] for row in rows if row["correct"] is not None]
    scoring.require_scale("the files", np.array(scored, float))
    frame, more = as_frame(rows, how, sampled=bool(sampled))
    if sampled:
        what = f"{listed(sampled)} answered each query several times: a row for each sample, with its answer"
        more.append(f"{what}, whose confidence is how many agree")
    signals = [
        f"the confidence of {listed(those)} is {_UNTOLD if signal is None else SIGNALS[signal]}"
        for signal, those in by_signal.items()
        if those
    ]
    return Evaluations(
        frame,
        (*signals, *_alike(answers), *more, *_remarks(rows, by_signal.get("choice", ()), how)),
        f"{count(sum(left_out.values()), 'answer')} left out: {_reasons(left_out)}" if left_out else None,
        unreadable,
    )


def _alike(models: Iterable[str]) -> list[str]:
    """Which models may be one that files call in two ways."""
    first: dict[str, str] = {}
    names = [(model, first.setdefault(model.rpartition("/")[2].casefold(), model)) for model in models]
    ways = "they are two models; where they are one, --rename"
    return [f"{other} and {model}: {ways} {model}={other}" for model, other in names if model != other]


def _used(queries: Mapping[str, list[Line]], left_out: Counter[str]) -> list[Line]:
    """The lines that did not fail: all where most queries have several, else the first."""
    left_out.update(str(line["error"]) for several in queries.values() for line in several if has_failed(line))
    sound = [[line for line in several if not has_failed(line)] for several in queries.values()]
    sound = [several for several in sound if several]
    repeated = [len(several) - 1 for several in sound if several[1:]]
    if 2 * len(repeated) > len(sound):
        return [one for several in sound for one in several]
    if repeated:
        left_out["repeated answers to a query"] += sum(repeated)
    return [several[0] for several in sound]


def _signal(model: str, lines: Sequence[Line]) -> str | None:
    """The signal that most answers of a model tell; None if they tell none, and can be compared."""
    told = Counter(line["signal"] for line in lines if line.get("logprob") is not None)
    if told or not lines or any(line.get(name) for line in lines for name in ANSWERS):
        return max(told, key=told.__getitem__, default=None)
    unusable = Counter(line["error"] for line in lines if line.get("error"))
    why = f" ({_reasons(unusable)})" if unusable else ""
    which = f"model {brief(model)}: no confidence can be read from its {count(len(lines), 'answer')}{why}"
    advice = "run the evaluation again with log-probabilities (of Inspect: --logprobs, for choices --top-logprobs 5)"
    raise LogError(f"{which}: {advice}, or with several samples of each answer (epochs, repeats), whose votes count")


def _rows(used: Sequence[Line], signal: str | None, how: How, left_out: Counter[str]) -> list[Line]:
    """The rows of one model; `left_out` counts the answers that make none, by the reason."""
    rows = []
    for line in used:
        where = f"{line['place']}, model {line['model']}, query {brief(line['query'])}"
        right = label_of(line.get("correct"), how.score_max, where)
        if right is None and "correct" in line:
            left_out["without a score"] += 1
            continue
        logprob = 0.0 if signal is None else line.get("logprob") if line.get("signal") == signal else None
        if logprob is None and line.get("logprob") is not None:
            line |= unread(f"it is {SIGNALS[line['signal']]}")
        said = {name: _one_line(line.get(name) or "") for name in ANSWERS}
        given = {name: text if comparable(text, "text") else None for name, text in said.items()}
        lacks = next((text for name, text in said.items() if text and not given[name]), None)
        rows.append(line | {"correct": right, "logprob": logprob, "lacks": lacks, **given})
    return rows


def _one_line(text: str) -> str:
    """An answer on one line: JSON and calls in canonical form, of other texts the words."""
    return canonical_json(text) or " ".join(text.split())


def _remarks(rows: Sequence[Line], by_choice: Sequence[str], how: How) -> list[str]:
    """What there is to say of missing confidences and labels, choices, cut answers and scores."""
    answers, others, cut = (
        Counter(row["model"] for row in rows if kept(row))
        for kept in (lambda row: True, lambda row: row.get("likeliest"), lambda row: row.get("finish") in _CUT)
    )
    unread = [row for row in rows if row["logprob"] is None]
    why = Counter(row["error"] if row.get("unread") else "the files have none" for row in unread)
    remarks = [f"{tell_unread(unread)} ({_reasons(why)})"] if unread else []
    remarks += [not_likeliest(model, others[model], answers[model]) for model in by_choice if others[model]]
    remarks += [f"{count(number, 'answer')} of {model} ended at a limit of tokens" for model, number in cut.items()]
    for model, number in Counter(row["model"] for row in rows if row["lacks"]).items():
        word = next(row["lacks"] for row in rows if row["lacks"] and row["model"] == model)
        remarks.append(f"{count(number, 'answer')} of {model} are none ({brief(word)}): they agree with no other")
    if bare := sum(row["correct"] is None for row in rows):
        what = f"of {count(bare, 'answer')} the files do not tell whether they are right: the column correct is empty"
        remarks.append(f"{what}, to be filled by --labels, or by hand (rcjax label)")
    if any(row["correct"] not in (None, 0, 1) for row in rows):
        names = sorted({row["scorer"] for row in rows if row.get("scorer")})
        by = f", by {listed(names)}," if names else ""
        whole = "" if how.score_max == 1 else f", {how.score_max:g} as 1"
        remarks.append(f"scores from 0 to 1{by} are in the column score{whole}")
    return remarks


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {why}" for why, number in left_out.items())


_ROUNDING = 1e-9  # a mean of scores that are all full may end that much below


def label_of(score: Any, most: float, where: str) -> float | None:
    """What a score is as a label: 1 for right, 0 for wrong, between them a score; None if nothing was scored.

    Args:
        score: a word, a truth value or a number; nothing is None, or not a number.
        most: the full score.
        where: the place of the score, for messages.

    Raises LogError for a score below 0 or above the full one, and for what is no score.

    >>> label_of("yes", 1, "a"), label_of(7, 10, "a")
    (1.0, 0.7)
    """
    word = score.strip().lower() if isinstance(score, str) else score
    word = WORDS.get(word, word) if isinstance(word, str) else word
    try:
        value = math.nan if word is None else most * word if isinstance(word, bool) else float(word)
    except (TypeError, ValueError):
        what = "is no number, and no word such as yes or no: put one there"
        raise LogError(f"{where}: the score {score!r:.60} {what}") from None
    if math.isnan(value):
        return None
    share = value / most
    if not -_ROUNDING <= share <= 1 + _ROUNDING:
        what = f"is on another scale than 0 to {most:g}: give the full score, with --score-max 10 (score_max=10)"
        raise LogError(f"{where}: the score {score!r:.60} {what}")
    return float(round(share)) if abs(share - round(share)) <= _ROUNDING else share


def as_frame(rows: list[Line], how: How, *, sampled: bool) -> tuple[pl.DataFrame, list[str]]:
    """The rows as a frame, with tokens, money or both; and what there is to say of these.

    Args:
        rows: lines whose `correct` is a label.
        how: whether prompts are kept.
        sampled: whether rows are samples.

    Raises LogError where a model has neither money nor anything to tell its tokens by.
    """
    notes = list[str]()
    priced = {row["model"] for row in rows if row.get("cost") is not None} == {row["model"] for row in rows}
    if estimated := sum(bool(row.get("estimated")) for row in rows):
        origin = f"estimated, {CHARACTERS:g} characters each"
        notes.append(f"tokens of {count(estimated, 'answer')} were not counted: they are {origin}")
    counted = all(row.get(name) is not None for row in rows for name in TOKENS)
    if priced:
        for row in rows:  # 0 beside others of the model is the mean of these, to whoever reads the log
            row["cost"] = row.get("cost") or 0.0
    elif counted:
        notes.append("no money in the table: tune it with --prices")
    else:
        ways = "nor texts to estimate them by: a table needs a column cost, or input_tokens and output_tokens"
        raise LogError(f"neither money nor tokens are in the files, {ways}")
    scored = any(row["correct"] not in (None, 0, 1) for row in rows)
    answers = _answers(rows)
    if answers:
        what = "what was answered is in the column"
        notes.append(f"{what} {' and '.join(answers)}, for rcjax tune to compare")
    if "answer_key" in answers:
        what = "answers were taken out of longer replies: a policy that compares them needs a signal that does so"
        notes.append(f"{what}, rcjax.Cascade(…, signal=…), and rcjax serve refuses it")
    timed = any(row.get("seconds") is not None for row in rows)
    schema = {"query": pl.String, "model": pl.String, **({"sample": pl.Int64} if sampled else {})}
    schema |= {"correct": pl.Float64 if scored else pl.Int8, "logprob": pl.Float64}
    schema |= dict.fromkeys([*answers, *["prompt"] * how.prompts], pl.String)
    caches = [name for name in CACHED if counted and any(row.get(name) for row in rows)]
    schema |= dict.fromkeys([*TOKENS * counted, *caches, *["cost"] * priced, *["seconds"] * timed], pl.Float64)
    frame = pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema, strict=False)
    return frame.rename({"correct": "score"}) if scored else frame, notes


def _answers(rows: list[Line]) -> list[str]:
    """The columns of answers; where some are keys, those that are not are keys, too, as a log compares one column."""
    if not any(row.get("answer_key") for row in rows):
        return ["answer"] if any(row.get("answer") for row in rows) else []
    both = any(row.get("answer_key") and row.get("answer") for row in rows)
    for row in rows:
        row["answer_key"] = row.get("answer_key") or row.get("answer")
    return [*["answer"] * both, "answer_key"]


#: Kinds of files that a log can be written to.
KINDS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame to a file whole, of the kind that its name tells; without one it is CSV."""
    kind, content = path.suffix.lower(), io.BytesIO()
    if kind == ".parquet":
        frame.write_parquet(content)
    elif kind in (".jsonl", ".ndjson"):
        frame.write_ndjson(content)
    else:
        frame.write_csv(content, separator="\t" if kind == ".tsv" else ",")
    write_atomically(path, content.getvalue())
