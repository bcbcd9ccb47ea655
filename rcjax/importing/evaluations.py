"""From evaluations that other programs ran to one table with a row per query and model, as `read_log` takes it."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.arguments import check_arguments
from rcjax._base.wording import count, not_likeliest
from rcjax.importing.answers import Answer, Choices
from rcjax.importing.confidences import SIGNALS, Confident, Signal
from rcjax.importing.formats import format_named, format_of, usable_files
from rcjax.importing.samples import alone_signal, has_samples
from rcjax.importing.scores import is_right
from rcjax.importing.texts import is_long, kept_text
from rcjax.logs.costs import mend, tell_lost
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed, near
from rcjax.logs.log import LeftOutWarning
from rcjax.logs.prices import read_prices

__all__ = ["Evaluations", "How", "import_evaluations", "read_evaluations"]

#: Characters of a token, where a file counts none: of English text.
CHARACTERS = 4.0


@dataclass(frozen=True)
class How:
    """How evaluations are read, where their files leave a choice."""

    format: str | None = None
    """One of `inspect`, `lm-eval`, `helm`, `promptfoo`, `table`; None: by the content of each file."""
    scorer: str | None = None
    """Whose scores count, where there are several: a scorer, a filter or a metric."""
    right_from: float | None = None
    """From which score on an answer is right; None: scores are 0 or 1."""
    signal: str | None = None
    """`own`, `choice`, `mean` or `votes`; None: for each model the first that most of its answers allow."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of models, by the old ones."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by ours."""
    tokens: tuple[float, float] | None = None
    """(input, output) tokens of a call, where the files count none; None: estimated by characters."""
    answers: bool = True
    """Whether the log is to say what was answered."""
    split: str = "test"
    """Whose instances of HELM count."""


@dataclass(frozen=True)
class Evaluations:
    """What was read."""

    frame: pl.DataFrame
    """`query`, `model`, `correct`, `logprob`, and `cost`, or `input_tokens` and `output_tokens`, or all three.

    `answer`, or `answer_key`, where files tell answers; `seconds` where they tell how long answers took; `sample` where
    a model answered queries several times."""
    assumed: tuple[str, ...]
    """What the confidences are, and what else was assumed, in sentences."""
    left_out: str | None = None
    """How many answers were left out, and why; None where all are in."""

    @property
    def notes(self) -> tuple[str, ...]:
        """All that is to be said."""
        return self.assumed if self.left_out is None else (*self.assumed, self.left_out)


_CHOICE = next(signal for signal in SIGNALS if signal.name == "choice")


#: The answers of a model to a query, by their attempt, each with its place.
_Attempts = dict[int, tuple[Answer, str]]


def read_evaluations(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    scorer: str | None = None,
    right_from: float | None = None,
    signal: str | None = None,
    rename: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    tokens: tuple[float, float] | None = None,
    answers: bool = True,
    split: str = "test",
) -> pl.DataFrame:
    """One table of evaluations that other programs ran, with a row per query and model, as `read_log` takes it.

    Formats are those of Inspect AI, lm-evaluation-harness, HELM and promptfoo, and tables with columns of any name; see
    the page [From evaluations](importing.md). Prompts are not in the table. What was answered is in a column `answer`,
    of long texts the beginning and a hash, so that the answers of models can be compared. Where a model gave several to
    a query (epochs, repeats), each has a row, with a column `sample`. Answers that are left out (failed, without a
    score or a confidence) are counted in a `LeftOutWarning`.

    Args:
        files: paths of files, or of folders of them.
        format: `inspect`, `lm-eval`, `helm`, `promptfoo` or `table`; None: told by the content of each file.
        prices: what tokens cost, as `read_log` takes it: the table then holds money.
        scorer: whose scores count, where a file has several: a scorer, a filter or a metric.
        right_from: from which score on an answer is right; None: scores must be 0 or 1.
        signal: what the confidence is: `own` (the file's), `choice`, `mean` (of the tokens) or `votes`, which make one
            row of several answers; None: the first of these that most answers of a model allow.
        rename: new names of models, by the old ones.
        columns: the names of a table's columns, by ours.
        tokens: (sent, received) of a call, where the files count none; None: one per four characters.
        answers: whether the table says what was answered; samples need it.
        split: whose instances of HELM count, as its own accuracy has it: `test`, `valid` or `train`.

    Raises LogError where a file cannot be used, or holds no confidence: it says what would give one.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = path.write_text("id,engine,ok,confidence,cost\\n1,org/small,yes,0.9,2\\n1,org/large,no,0.7,9\\n")
    >>> read_evaluations(path, columns={"query": "id", "model": "engine", "correct": "ok"}).to_dicts()[0]
    {'query': '1', 'model': 'small', 'correct': 1, 'logprob': -0.105..., 'cost': 2.0}
    """
    check_arguments(read_evaluations, locals())
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    how = How(format, scorer, right_from, signal, rename or {}, columns or {}, tokens, answers, split)
    evaluations = import_evaluations(paths, how, prices)
    if evaluations.left_out is not None:
        warnings.warn(evaluations.left_out, LeftOutWarning, stacklevel=2)
    return evaluations.frame


def import_evaluations(paths: Sequence[str | os.PathLike[str]], how: How, prices: Any = None) -> Evaluations:
    """Read files of evaluations, as `rcjax.read_evaluations` does.

    Args:
        paths: the files, and folders of them.
        how: what their files leave a choice of.
        prices: of tokens, as `read_prices` takes them.
    """
    rates = None if prices is None else read_prices(prices)
    if how.signal is not None and how.signal not in (names := [signal.name for signal in SIGNALS]):
        raise LogError(f"signal {how.signal!r:.60} is unknown: choose {', '.join(names)}")
    answers = _gather(paths, how)
    left_out: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    models_by_signal: dict[str, list[str]] = {}
    sampled = [model for model, queries in answers.items() if how.signal is None and has_samples(_sounds(queries))]
    if sampled and not how.answers:
        what = f"{listed(sampled)} answered each query several times, and only their answers tell which of them agree"
        raise LogError(f"{what}: keep the answers, or make one row of them, with --signal votes (signal='votes')")
    for model, queries in answers.items():
        apart = model in sampled
        signal = alone_signal(_sounds(queries)) if apart else _signal(model, queries.values(), how.signal)
        models_by_signal.setdefault(signal.says, []).append(model)
        rows += _rows_of(model, _apart(queries) if apart else queries, signal, how.right_from, left_out)
    if not rows:
        why = _reasons(left_out) if left_out else f"none has a score of {how.scorer!r:.60}: choose another scorer"
        raise LogError(f"no answer can be used: {why}")
    frame, more = _table(rows, rates, how, sampled=bool(sampled))
    if sampled:
        what = f"{listed(sampled)} answered each query several times: a row for each sample, with its answer"
        more.append(f"{what}, so that votes are tried; --signal votes makes one row of them")
    more += _not_likeliest(rows, [*models_by_signal.get(_CHOICE.says, ())])
    signals = [f"the confidence of {listed(models)} is {says}" for says, models in models_by_signal.items()]
    lost = f"{count(sum(left_out.values()), 'answer')} left out: {_reasons(left_out)}" if left_out else None
    return Evaluations(frame, (*signals, *more), lost)


def _not_likeliest(rows: Sequence[Mapping[str, Any]], models: Sequence[str]) -> list[str]:
    """Of each of the models, in how many answers the choice given is not the likeliest, if in any."""
    answers = Counter(row["model"] for row in rows)
    others = Counter(row["model"] for row in rows if row["likeliest"] is not None)
    return [not_likeliest(model, others[model], answers[model]) for model in models if others[model]]


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {why}" for why, number in left_out.items())


def _gather(paths: Sequence[str | os.PathLike[str]], how: How) -> dict[str, dict[str, _Attempts]]:
    """The answers by model and query. Models have the names that they end up with."""
    if not paths:
        raise LogError("no files: give at least one")
    choices = Choices(how.scorer, tuple(how.columns.items()), how.split)
    answers: dict[str, dict[str, _Attempts]] = {}
    for path in usable_files([Path(path) for path in paths]):
        if not path.is_file():
            raise LogError(f"{path} is missing: give a file")
        reader = format_of(path) if how.format is None else format_named(how.format)
        for answer in reader.read(path, choices):
            attempts = answers.setdefault(answer.model, {}).setdefault(answer.query, {})
            if answer.attempt in attempts:
                where = f"{path.name}, model {brief(answer.model)}, query {brief(answer.query)}"
                other = attempts[answer.attempt][1]
                raise LogError(f"{where}: was answered already in {other}: leave one of them out")
            attempts[answer.attempt] = answer, path.name
    names = _names(list(answers), how.rename)
    return {names[model]: queries for model, queries in answers.items()}


def _names(models: list[str], rename: Mapping[str, str]) -> dict[str, str]:
    """The names that models end up with: without the provider where that stays unique, or as renamed.

    >>> _names(["openai/gpt-4o-mini", "a/small", "b/small"], {"b/small": "tiny"})
    {'openai/gpt-4o-mini': 'gpt-4o-mini', 'a/small': 'small', 'b/small': 'tiny'}
    """
    short = {model: model.rpartition("/")[2] or model for model in models}
    meant = {old: [model for model in models if old in (model, short[model])] for old in rename}
    for old, those in meant.items():
        if len(those) != 1:
            which = f"several models, {listed(those)}" if those else f"no model{near(old, models)}; there are "
            raise LogError(f"rename {brief(old)}: names {which}{'' if those else listed(models)}")
    renamed = {those[0]: rename[old] for old, those in meant.items()}
    others = Counter(short[model] for model in models if model not in renamed)
    names = {
        m: renamed.get(m, short[m] if others[short[m]] == 1 and short[m] not in renamed.values() else m) for m in models
    }
    twice = [name for name, number in Counter(names.values()).items() if number > 1]
    if twice:
        raise LogError(f"rename: two models would be called {brief(twice[0])}: give them different names")
    return names


def _sounds(queries: Mapping[str, _Attempts]) -> list[list[Answer]]:
    """The answers to each query that did not fail, of queries that have some."""
    return [sound for sound in map(_sound, queries.values()) if sound]


def _apart(queries: Mapping[str, _Attempts]) -> list[tuple[str, _Attempts]]:
    """Each attempt by itself."""
    return [(query, {number: one}) for query, several in queries.items() for number, one in sorted(several.items())]


def _rows_of(
    model: str,
    queries: Mapping[str, _Attempts] | list[tuple[str, _Attempts]],
    signal: Signal,
    right_from: float | None,
    left_out: Counter[str],
) -> Iterator[dict[str, Any]]:
    """The rows of one model; `left_out` counts the answers that make none, by the reason."""
    for query, attempts in queries.items() if isinstance(queries, Mapping) else queries:
        left_out.update(answer.failure for answer, _ in attempts.values() if answer.failure is not None)
        sound = _sound(attempts)
        confident = signal.read(sound) if sound else None
        if confident is None:
            if sound:
                left_out[_lacking(sound, signal)] += 1
            continue
        place = next(where for answer, where in attempts.values() if answer is confident.answer)
        right = is_right(confident.answer.score, right_from, f"{place}, model {model}, query {brief(query)}")
        if right is None:
            left_out["without a score"] += 1
            continue
        yield _row(query, model, right, confident, sound if signal.name == "votes" else None)


def _lacking(answers: Sequence[Answer], signal: Signal) -> str:
    """That there is no confidence, and why, where a file holds something in its place."""
    why = next((answer.unusable for answer in answers if answer.unusable is not None), None)
    return "without a confidence" if why is None or signal.name == "votes" else f"without a confidence ({why})"


def _sound(attempts: _Attempts) -> list[Answer]:
    """The answers that did not fail, by their attempt."""
    return [answer for answer, _ in (attempts[number] for number in sorted(attempts)) if answer.failure is None]


def _row(query: str, model: str, right: bool, confident: Confident, samples: list[Answer] | None) -> dict[str, Any]:
    """A row of the table; of votes, all samples are paid for."""
    paid = samples or [confident.answer]

    def total(field: str) -> float | None:
        values = [getattr(answer, field) for answer in paid]
        return None if None in values else sum(values)

    characters = [answer.characters for answer in paid]
    lengths = None if None in characters else [sum(part) for part in zip(*characters, strict=True)]  # type: ignore[misc]
    return {
        "query": query,
        "model": model,
        "sample": confident.answer.attempt,
        "correct": int(right),
        "logprob": confident.logprob,
        "answer": confident.answer.text,
        "answer_key": confident.answer.key,
        "input_tokens": total("input_tokens"),
        "output_tokens": total("output_tokens"),
        "cost": total("cost"),
        "seconds": None
        if any(answer.seconds is None for answer in paid)
        else max(answer.seconds or 0.0 for answer in paid),
        "lengths": lengths,
        "calls": len(paid),
        "likeliest": confident.answer.likeliest,
    }


def _signal(model: str, queries: Iterable[_Attempts], name: str | None) -> Signal:
    """The signal that most answers of a model allow, the first of equals."""
    signals = [signal for signal in SIGNALS if name in (None, signal.name)]
    answers = [sound for sound in map(_sound, queries) if sound]
    counts = [sum(signal.read(attempts) is not None for attempts in answers) for signal in signals]
    if answers and not any(counts):
        which = "no confidence can be read" if name is None else f"the signal {name} cannot be read"
        unusable = Counter(answer.unusable for several in answers for answer in several if answer.unusable)
        why = f" ({_reasons(unusable)})" if unusable else ""
        advice = (
            "run the evaluation again with log-probabilities (of Inspect: --logprobs, for choices --top-logprobs 5), "
            "or with several samples of each answer (epochs, repeats), whose votes count"
        )
        raise LogError(f"model {brief(model)}: {which} from its {count(len(answers), 'answer')}{why}: {advice}")
    return signals[max(range(len(signals)), key=lambda place: (counts[place], -place))]


def _table(
    rows: list[dict[str, Any]], rates: Mapping[str, tuple[float, float]] | None, how: How, *, sampled: bool
) -> tuple[pl.DataFrame, list[str]]:
    """The rows as a frame, with tokens, money or both; and what there is to say of these."""
    notes: list[str] = []
    needed = rates is not None or any(row["cost"] is None for row in rows)
    estimated = sum(_estimate(row, how) for row in rows) if needed else 0
    if estimated:
        told = "as given" if how.tokens else f"estimated, {CHARACTERS:g} characters each"
        notes.append(f"tokens of {count(estimated, 'answer')} were not counted: they are {told}")
    counted = all(row["input_tokens"] is not None and row["output_tokens"] is not None for row in rows)
    priced = rates is not None or all(row["cost"] is not None for row in rows)
    if not counted and (rates is not None or not priced):
        what = (
            "tokens are not in the files, nor"
            if rates is not None
            else "neither money nor tokens are in the files, nor"
        )
        raise LogError(f"{what} texts to estimate them by: say how many a call takes, with --tokens IN,OUT (tokens=)")
    if rates is not None:
        _price(rows, rates)
    notes += _lost_costs(rows) if priced else ["no money in the table: tune it with --prices, or import it with them"]
    schema = {"query": pl.String, "model": pl.String, **({"sample": pl.Int64} if sampled else {})}
    schema |= {"correct": pl.Int8, "logprob": pl.Float64} | dict.fromkeys(_told_answers(rows, how, notes), pl.String)
    schema |= {"input_tokens": pl.Float64, "output_tokens": pl.Float64} if counted else {}
    schema |= {"cost": pl.Float64} if priced else {}
    schema |= {"seconds": pl.Float64} if any(row["seconds"] is not None for row in rows) else {}
    return pl.DataFrame({name: [row[name] for row in rows] for name in schema}, schema=schema), notes


def _lost_costs(rows: list[dict[str, Any]]) -> list[str]:
    """What there is to say of costs that were lost."""
    costs: dict[str, list[float]] = {}
    for row in rows:
        costs.setdefault(row["model"], []).append(row["cost"])
    told = tell_lost({model: (mend(np.array(own, float)), len(own)) for model, own in costs.items()})
    return [] if told is None else [told]


def _told_answers(rows: list[dict[str, Any]], how: How, notes: list[str]) -> list[str]:
    """The columns that tell what was answered, if there are some; of long texts, rows then keep less."""
    if not how.answers:
        return []
    long = sum(is_long(row["answer"]) for row in rows)
    for row in rows:
        row["answer"] = kept_text(row["answer"])
    told = [name for name in ("answer", "answer_key") if any(row[name] is not None for row in rows)]
    if told:
        shortened = f"; of {count(long, 'long text')} the beginning and a hash" if long else ""
        notes.append(f"what was answered is in the column {' and '.join(told)}, for rcjax tune to compare{shortened}")
    return told


def _price(rows: list[dict[str, Any]], rates: Mapping[str, tuple[float, float]]) -> None:
    """Put into the rows what their tokens cost."""
    for model in dict.fromkeys(row["model"] for row in rows):
        if model not in rates:
            known = f"the prices know {listed(rates)}"
            raise LogError(f"model {brief(model)}: no price{near(model, rates)}; {known}: add one, or rename the model")
    for row in rows:
        sent, received = rates[row["model"]]
        row["cost"] = (row["input_tokens"] * sent + row["output_tokens"] * received) / 1e6


def _estimate(row: dict[str, Any], how: How) -> bool:
    """Fill in the tokens of a row that were not counted, if there is a way; whether there was."""
    if row["input_tokens"] is not None and row["output_tokens"] is not None:
        return False
    if how.tokens is not None:
        estimate = [row["calls"] * tokens for tokens in how.tokens]
    elif row["lengths"] is not None:
        estimate = [max(1.0, round(length / CHARACTERS)) for length in row["lengths"]]
    else:
        return False
    row["input_tokens"], row["output_tokens"] = map(float, estimate)
    return True
