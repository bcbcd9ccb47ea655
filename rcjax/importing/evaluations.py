"""From evaluations that other programs ran to one table with a row per query and model, as `read_log` takes it."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.wording import count, no_confidence, not_likeliest
from rcjax.importing.gathering import gather
from rcjax.importing.lines import How, Line, unread
from rcjax.importing.rows import as_frame, label_of
from rcjax.logs.columns import ANSWERS
from rcjax.logs.errors import LogError, brief, listed
from rcjax.logs.log import LeftOutWarning, PricesWarning
from rcjax.logs.prices import priced_by, priced_words, read_prices
from rcjax.logs.scoring import Scoring
from rcjax.policy.answers import comparable
from rcjax.serving.call_log import has_failed

#: Where the confidence of an answer may come from, in words.
SIGNALS = {
    "own": "what the table says",
    "lm-eval": "the likelihood of the choice among all choices, or the share of the repeats that agree",
    "choice": "the probability of the choice made",
    "mean": "the mean log-probability of the tokens",
}

_UNTOLD = "1 for each answer, as the files have none: only whether answers agree counts"

#: How APIs call the end of a reply that a limit of tokens has cut off.
_CUT = ("length", "max_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Evaluations:
    """What was read."""

    frame: pl.DataFrame
    """`query`, `model`, `correct`, `logprob`, and `cost`, or `input_tokens` and `output_tokens`, or all three.

    `correct` is empty if files do not tell right from wrong; `score`, from 0 to 1, stands in its place where some
    answers are neither. `answer`, where files tell answers;
    `seconds` where they tell how long answers took; `sample` where a model answered queries several times."""
    assumed: tuple[str, ...]
    """What the confidences are, and what else was assumed, in sentences."""
    left_out: str | None = None
    """How many answers were left out, and why; None if all are in."""
    damage: str | None = None
    """How many files and samples cannot be read, and which; None if all can."""
    unreadable: tuple[str, ...] = ()
    """Of each of these, what is wrong where."""
    priced: str | None = None
    """Which entries of a list of prices were taken, in words; None if prices are from no list."""
    priced_by: Mapping[str, str] = field(default_factory=dict)
    """The same: the entry, by model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what was left out."""
        return self.assumed if self.left_out is None else (*self.assumed, self.left_out)


def read_evaluations(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, prices: Any = None, **choices: Any
) -> pl.DataFrame:
    """One table of evaluations that other programs ran, with a row per query and model, as `read_log` takes it.

    Formats are those of Inspect AI, lm-evaluation-harness, HELM, promptfoo, LiteLLM, OpenTelemetry and OpenAI's
    batches, and tables with columns of any name; see the page [From evaluations](importing.md). What was answered is in
    a column `answer`. Where a model gave several to a query (epochs, repeats), each has a row, with a column `sample`.
    Where files do not tell right from wrong, `correct` is empty; where some answers are neither, a column `score`, from
    0 to 1, stands in its place. Answers that are left out (failed, or without a score), and files and
    samples that cannot be read, are counted in a `LeftOutWarning`.

    Args:
        files: paths of files, or of folders of them.
        prices: what tokens cost, as `read_log` takes it: the table then holds money.
        choices: what files leave open, by the names of `How`: `format`, `scorer`, `right_from`, `score_max`, `rename`,
            `columns`, `tokens`, `split`, `strict`, `prompts`.

    Raises LogError where a file cannot be used, or holds no confidence: it says what would give one.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = path.write_text("id,engine,ok,confidence,cost\\n1,org/small,yes,0.9,2\\n1,org/large,no,0.7,9\\n")
    >>> read_evaluations(path, columns={"query": "id", "model": "engine", "correct": "ok"}).to_dicts()[0]
    {'query': '1', 'model': 'small', 'correct': 1, 'logprob': -0.105..., 'cost': 2.0}
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    evaluations = import_evaluations(paths, How(**choices), prices)
    for remark in filter(None, (evaluations.left_out, evaluations.damage)):
        warnings.warn(remark, LeftOutWarning, stacklevel=2)
    if evaluations.priced is not None:
        warnings.warn(evaluations.priced, PricesWarning, stacklevel=2)
    return evaluations.frame


def import_evaluations(paths: Sequence[str | os.PathLike[str]], how: How, prices: Any = None) -> Evaluations:
    """Read files of evaluations, as `rcjax.importing.read_evaluations` does.

    Args:
        paths: the files, and folders of them.
        how: what their files leave a choice of.
        prices: of tokens, as `read_prices` takes them.

    Raises ValueError for a full score that is none, or beside a score from which on answers are right.
    """
    scoring = Scoring(how.score_max).check()
    if how.right_from is not None and how.score_max != 1:
        raise ValueError(
            "give one of --score-max (score_max=), where scores stay scores, and --right-from (right_from=)"
        )
    rates = None if prices is None else read_prices(prices)
    gathered = gather(paths, how)
    left_out: Counter[str] = Counter()
    rows: list[Line] = []
    by_signal: dict[str | None, list[str]] = {}
    sampled: list[str] = []
    for model, queries in gathered.answers.items():
        used = _used(queries, left_out)
        if len({line["query"] for line in used}) < len(used):
            sampled.append(model)
        signal = _signal(model, used)
        by_signal.setdefault(signal, []).extend([model] if used else [])
        rows += _rows(used, signal, how, left_out)
    if not rows:
        why = _reasons(left_out) or f"none has a score of {how.scorer!r:.60}: choose another scorer"
        raise LogError(f"no answer can be used: {why}" if gathered.answers else "no answers in the files")
    scored = [row["correct"] for row in rows if row["correct"] is not None]
    scoring.require_scale("the files", np.array(scored, float))
    frame, more = as_frame(rows, rates, how, sampled=bool(sampled))
    if sampled:
        what = f"{listed(sampled)} answered each query several times: a row for each sample, with its answer"
        more.append(f"{what}, whose confidence is how many agree")
    signals = [
        f"the confidence of {listed(those)} is {_UNTOLD if signal is None else SIGNALS[signal]}"
        for signal, those in by_signal.items()
        if those
    ]
    models = frame["model"].unique(maintain_order=True).to_list()
    return Evaluations(
        frame,
        (*signals, *gathered.alike, *more, *_remarks(rows, by_signal.get("choice", ()), how)),
        f"{count(sum(left_out.values()), 'answer')} left out: {_reasons(left_out)}" if left_out else None,
        damage=gathered.damage,
        unreadable=(*gathered.lost_files, *gathered.lost_samples),
        priced=priced_words(rates, models),
        priced_by=priced_by(rates, models),
    )


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
        right = label_of(line.get("correct"), how.right_from, how.score_max, where)
        if right is None and "correct" in line:
            left_out["without a score"] += 1
            continue
        logprob = 0.0 if signal is None else line.get("logprob") if line.get("signal") == signal else None
        if logprob is None and line.get("logprob") is not None:
            line |= unread(f"it is {SIGNALS[line['signal']]}")
        said = {name: " ".join((line.get(name) or "").split()) for name in ANSWERS}
        said = {name: text if comparable(text, "text") else None for name, text in said.items()}
        rows.append(line | {"correct": right, "logprob": logprob, **said})
    return rows


def _remarks(rows: Sequence[Line], by_choice: Sequence[str], how: How) -> list[str]:
    """What there is to say of missing confidences and labels, choices, cut answers and scores."""
    answers, others, cut = (
        Counter(row["model"] for row in rows if kept(row))
        for kept in (lambda row: True, lambda row: row.get("likeliest"), lambda row: row.get("finish") in _CUT)
    )
    remarks = _unread(rows) + [
        not_likeliest(model, others[model], answers[model]) for model in by_choice if others[model]
    ]
    remarks += [f"{count(number, 'answer')} of {model} ended at a limit of tokens" for model, number in cut.items()]
    if bare := sum(row["correct"] is None for row in rows):
        what = f"of {count(bare, 'answer')} the files do not tell whether they are right: the column correct is empty"
        remarks.append(f"{what}, to be filled by --labels, or by hand (rcjax label)")
    if any(row["correct"] not in (None, 0, 1) for row in rows):
        names = sorted({row["scorer"] for row in rows if row.get("scorer")})
        by = f", by {listed(names)}," if names else ""
        whole = "" if how.score_max == 1 else f", {how.score_max:g} as 1"
        half = f"--right-from {0.5 * how.score_max:g}"
        remarks.append(
            f"scores from 0 to 1{by} are in the column score{whole}; {half} in their place for right and wrong"
        )
    return remarks


def _unread(rows: Sequence[Line]) -> list[str]:
    """How many answers of which models lack a confidence, how many of them are right, and why."""
    by_model: dict[str, list[float | None]] = {}
    why: Counter[str] = Counter()
    for row in rows:
        if row["logprob"] is None:
            by_model.setdefault(row["model"], []).append(row["correct"])
            why[row["error"] if row.get("unread") else "the files have none"] += 1
    labels = {model: [label for label in every if label is not None] for model, every in by_model.items()}
    said = no_confidence((model, len(by_model[model]), len(those), sum(those)) for model, those in labels.items())
    return [] if said is None else [f"{said} ({_reasons(why)})"]


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {why}" for why, number in left_out.items())
