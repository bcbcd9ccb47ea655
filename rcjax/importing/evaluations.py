"""From evaluations that other programs ran to one table with a row per query and model, as `read_log` takes it."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.wording import count, not_likeliest
from rcjax.importing.confidences import SIGNALS, UNTOLD, Confident, ImportedSignal, alone_signal, has_samples
from rcjax.importing.foreign_answers import ImportedAnswer
from rcjax.importing.foreign_scores import label_of
from rcjax.importing.frames import any_score, as_frame
from rcjax.importing.gathering import Attempts, gather
from rcjax.importing.how import How
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed
from rcjax.logs.log import LeftOutWarning, PricesWarning
from rcjax.logs.price_lists import priced_by
from rcjax.logs.prices import priced_words, read_prices
from rcjax.logs.scoring import Scoring


@dataclass(frozen=True)
class Evaluations:
    """What was read."""

    frame: pl.DataFrame
    """`query`, `model`, `correct`, `logprob`, and `cost`, or `input_tokens` and `output_tokens`, or all three.

    `correct` is empty where files do not tell right from wrong; `score`, from 0 to 1, stands in its place where some
    answers are neither. `answer`, or `answer_key`, where files tell answers;
    `seconds` where they tell how long answers took; `sample` where a model answered queries several times."""
    assumed: tuple[str, ...]
    """What the confidences are, and what else was assumed, in sentences."""
    left_out: str | None = None
    """How many answers were left out, and why; None where all are in."""
    damage: str | None = None
    """How many files and samples cannot be read, and which; None where all can."""
    unreadable: tuple[str, ...] = ()
    """Of each of these, what is wrong where."""
    priced: str | None = None
    """Which entries of a list of prices were taken, in words; None where prices are from no list."""
    priced_by: Mapping[str, str] = field(default_factory=dict)
    """The same: the entry, by model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what was left out."""
        return self.assumed if self.left_out is None else (*self.assumed, self.left_out)


_CHOICE = next(signal for signal in SIGNALS if signal.name == "choice")


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
    strict: bool = False,
    prompts: bool = False,
    score_max: float = 1.0,
) -> pl.DataFrame:
    """One table of evaluations that other programs ran, with a row per query and model, as `read_log` takes it.

    Formats are those of Inspect AI, lm-evaluation-harness, HELM, promptfoo, LiteLLM, OpenTelemetry and OpenAI's
    batches, and tables with columns of any name; see the page [From evaluations](importing.md). What was answered is in
    a column `answer`, of long texts the beginning and a hash, so that the answers of models can be compared. Where a
    model gave several to a query (epochs, repeats), each has a row, with a column `sample`. Where files do not tell
    right from wrong, `correct` is empty; where some answers are neither, a column `score`, from 0 to 1, stands in its
    place. Answers that are left out (failed, without a score or a confidence), and
    files and samples that cannot be read, are counted in a `LeftOutWarning`. A model of whose answers no confidence is
    told has 1 for each, as long as there are answers to compare.

    Args:
        files: paths of files, or of folders of them.
        format: `inspect`, `lm-eval`, `helm`, `promptfoo`, `litellm`, `otel`, `openai-batch`, `table` or `wide`; None:
            told by the content of each file, but for `wide`, a table with columns `m`, `m|cost`, `m|answer` of each
            model.
        prices: what tokens cost, as `read_log` takes it: the table then holds money.
        scorer: whose scores count, where a file has several: a scorer, a filter or a metric.
        right_from: from which score on an answer is right, on any scale; None: scores stay scores.
        signal: what the confidence is: `own` (the file's), `choice`, `mean` (of the tokens) or `votes`, which make one
            row of several answers; None: the first of these that most answers of a model allow.
        rename: new names of models, by the old ones.
        columns: the names of a table's columns, by ours; of logs of calls, `query` is the path of what names the query.
        tokens: (sent, received) of a call, where the files count none; None: one per four characters.
        answers: whether the table says what was answered; samples need it.
        split: whose instances of HELM count, as its own accuracy has it: `test`, `valid` or `train`.
        strict: raise where a file or a sample cannot be read; else it is left out, where others can.
        prompts: whether the table says what was asked (`prompt`), and all that was answered (`text`).
        score_max: the full score, where scores stay scores.

    Raises LogError where a file cannot be used, or holds no confidence: it says what would give one.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = path.write_text("id,engine,ok,confidence,cost\\n1,org/small,yes,0.9,2\\n1,org/large,no,0.7,9\\n")
    >>> read_evaluations(path, columns={"query": "id", "model": "engine", "correct": "ok"}).to_dicts()[0]
    {'query': '1', 'model': 'small', 'correct': 1, 'logprob': -0.105..., 'cost': 2.0}
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    how = How(format, scorer, right_from, signal, rename or {}, columns or {}, tokens, answers, split)
    how = dataclasses.replace(how, strict=strict, prompts=prompts, score_max=score_max)
    evaluations = import_evaluations(paths, how, prices)
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
    if how.signal is not None and how.signal not in (names := [signal.name for signal in SIGNALS]):
        raise LogError(f"signal {how.signal!r:.60} is unknown: choose {', '.join(names)}")
    gathered = gather(paths, how)
    answers = gathered.answers
    left_out: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    models_by_signal: dict[str, list[str]] = {}
    sampled = [model for model, queries in answers.items() if how.signal is None and has_samples(_sounds(queries))]
    if sampled and not how.answers:
        what = f"{listed(sampled)} answered each query several times, and only their answers tell which of them agree"
        raise LogError(f"{what}: keep the answers, or make one row of them, with --signal votes (signal='votes')")
    for model, queries in answers.items():
        sounds = _sounds(queries)
        signal = alone_signal(sounds) if model in sampled else _signal(model, sounds, how)
        if sounds:
            models_by_signal.setdefault(signal.says, []).append(model)
        rows += _rows_of(model, _apart(queries) if model in sampled else queries, signal, how, left_out)
    if not answers:
        raise LogError("no answers in the files: are they of calls of models?")
    if not rows:
        why = _reasons(left_out) if left_out else f"none has a score of {how.scorer!r:.60}: choose another scorer"
        raise LogError(f"no answer can be used: {why}")
    scored = [row["correct"] for row in rows if row["correct"] is not None]
    scoring.require_scale("the files", np.array(scored, float))
    frame, more = as_frame(rows, rates, how, sampled=bool(sampled))
    if sampled:
        what = f"{listed(sampled)} answered each query several times: a row for each sample, with its answer"
        more.append(f"{what}, whose confidence is how many agree; --signal votes makes one row of them")
    more += _not_likeliest(rows, [*models_by_signal.get(_CHOICE.says, ())]) + _of_ends(rows)
    more += _of_labels(rows) + _of_scores(rows, how)
    signals = [f"the confidence of {listed(models)} is {says}" for says, models in models_by_signal.items()]
    lost = f"{count(sum(left_out.values()), 'answer')} left out: {_reasons(left_out)}" if left_out else None
    models = frame["model"].unique(maintain_order=True).to_list()
    return Evaluations(
        frame,
        (*signals, *more),
        lost,
        damage=gathered.damage,
        unreadable=(*gathered.lost_files, *gathered.lost_samples),
        priced=priced_words(rates, models),
        priced_by=priced_by(rates, models),
    )


def _of_labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What there is to say of answers of which the files do not tell whether they are right."""
    bare = sum(row["correct"] is None for row in rows)
    if not bare:
        return []
    what = f"of {count(bare, 'answer')} the files do not tell whether they are right: the column correct is empty"
    return [f"{what}, to be filled by --labels, or by hand (rcjax label)"]


def _of_scores(rows: Sequence[Mapping[str, Any]], how: How) -> list[str]:
    """What there is to say of scores that are neither right nor wrong."""
    if not any_score(rows):
        return []
    names = sorted({row["scorer"] for row in rows if row["scorer"] is not None})
    by = f", by {listed(names)}," if names else ""
    whole = "" if how.score_max == 1 else f", {how.score_max:g} as 1"
    half = f"--right-from {0.5 * how.score_max:g}"
    return [f"scores from 0 to 1{by} are in the column score{whole}; {half} in their place for right and wrong"]


def _of_ends(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What there is to say of answers that were cut off."""
    cut = Counter(row["model"] for row in rows if row["finish"] in _CUT)
    return [f"{count(number, 'answer')} of {model} ended at a limit of tokens" for model, number in cut.items()]


#: How APIs call the end of a reply that a limit of tokens has cut off.
_CUT = ("length", "max_tokens", "max_output_tokens")


def _not_likeliest(rows: Sequence[Mapping[str, Any]], models: Sequence[str]) -> list[str]:
    """Of each of the models, in how many answers the choice given is not the likeliest, if in any."""
    answers = Counter(row["model"] for row in rows)
    others = Counter(row["model"] for row in rows if row["likeliest"] is not None)
    return [not_likeliest(model, others[model], answers[model]) for model in models if others[model]]


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{number:,} {why}" for why, number in left_out.items())


def _sounds(queries: Mapping[str, Attempts]) -> list[list[ImportedAnswer]]:
    """The answers to each query that did not fail, of queries that have some."""
    return [sound for sound in map(_sound, queries.values()) if sound]


def _apart(queries: Mapping[str, Attempts]) -> list[tuple[str, Attempts]]:
    """Each attempt by itself."""
    return [(query, {number: one}) for query, several in queries.items() for number, one in sorted(several.items())]


def _rows_of(
    model: str,
    queries: Mapping[str, Attempts] | list[tuple[str, Attempts]],
    signal: ImportedSignal,
    how: How,
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
        where = f"{place}, model {model}, query {brief(query)}"
        right = label_of(confident.answer.score, how.right_from, how.score_max, where)
        if right is None and confident.answer.judged:
            left_out["without a score"] += 1
            continue
        if signal.name != "votes" and len(sound) > 1:
            left_out["repeated answers to a query"] += len(sound) - 1
        yield _row(query, model, right, confident, sound if signal.name == "votes" else None)


def _lacking(answers: Sequence[ImportedAnswer], signal: ImportedSignal) -> str:
    """That there is no confidence, and why, where a file holds something in its place."""
    why = next((answer.unusable for answer in answers if answer.unusable is not None), None)
    return "without a confidence" if why is None or signal.name == "votes" else f"without a confidence ({why})"


def _sound(attempts: Attempts) -> list[ImportedAnswer]:
    """The answers that did not fail, by their attempt."""
    return [answer for answer, _ in (attempts[number] for number in sorted(attempts)) if answer.failure is None]


def _row(
    query: str, model: str, right: float | None, confident: Confident, samples: list[ImportedAnswer] | None
) -> dict[str, Any]:
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
        "correct": right,
        "scorer": confident.answer.scorer,
        "logprob": confident.logprob,
        "answer": confident.answer.text,
        "answer_key": confident.answer.key,
        "prompt": confident.answer.prompt,
        "text": confident.answer.text,
        "finish": confident.answer.finish,
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


def _signal(model: str, answers: Sequence[Sequence[ImportedAnswer]], how: How) -> ImportedSignal:
    """The signal that most answers of a model allow, the first of equals; none where they can only be compared.

    Args:
        model: its name, for messages.
        answers: its answers to each query, without those that failed.
        how: which signal is asked for, and whether answers are kept.
    """
    signals = [signal for signal in SIGNALS if how.signal in (None, signal.name)]
    counts = [sum(signal.read(attempts) is not None for attempts in answers) for signal in signals]
    if any(counts) or not answers:
        return signals[max(range(len(signals)), key=lambda index: (counts[index], -index))]
    comparable = any(answer.text or answer.key for several in answers for answer in several)
    if how.signal is None and how.answers and comparable:
        return UNTOLD
    which = "no confidence can be read" if how.signal is None else f"the signal {how.signal} cannot be read"
    unusable = Counter(answer.unusable for several in answers for answer in several if answer.unusable)
    why = f" ({_reasons(unusable)})" if unusable else ""
    advice = (
        "run the evaluation again with log-probabilities (of Inspect: --logprobs, for choices --top-logprobs 5), "
        "or with several samples of each answer (epochs, repeats), whose votes count"
    )
    raise LogError(f"model {brief(model)}: {which} from its {count(len(answers), 'answer')}{why}: {advice}")
