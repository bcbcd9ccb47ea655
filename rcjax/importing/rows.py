"""The rows of a log to come: a label from what a scorer gave, and a frame with tokens, money or both."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from rcjax._base.files import write_atomically
from rcjax._base.tokens import Price, Tokens
from rcjax._base.wording import count
from rcjax.importing.lines import CHARACTERS, How, Line
from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.costs import mend_all, tell_lost
from rcjax.logs.errors import LogError
from rcjax.logs.prices import price_for
from rcjax.logs.scoring import WORDS

_ROUNDING = 1e-9  # a mean of scores that are all full may end that much below


def label_of(score: Any, right_from: float | None, most: float, where: str) -> float | None:
    """What a score is as a label: 1 for right, 0 for wrong, between them a score; None if nothing was scored.

    Args:
        score: a word, a truth value or a number; nothing is None, or not a number.
        right_from: from which score on an answer counts as right, on whatever scale; None: scores stay scores.
        most: the full score, where scores stay scores.
        where: the place of the score, for messages.

    Raises LogError for a score below 0 or above the full one without `right_from`, and for what is no score.

    >>> label_of("yes", None, 1, "a"), label_of(7, None, 10, "a"), label_of(0.5, 0.5, 1, "a")
    (1.0, 0.7, 1.0)
    """
    word = score.strip().lower() if isinstance(score, str) else score
    word = WORDS.get(word, word) if isinstance(word, str) else word
    try:
        value = math.nan if word is None else most * word if isinstance(word, bool) else float(word)
    except (TypeError, ValueError):
        what = "is no number, and no word such as yes or no: choose another"
        raise LogError(f"{where}: the score {score!r:.60} {what}") from None
    if math.isnan(value):
        return None
    if right_from is not None:
        return float(value >= right_from)
    share = value / most
    if not -_ROUNDING <= share <= 1 + _ROUNDING:
        scale = f"on another scale than 0 to {most:g}"
        advice = (
            "give the full score, with --score-max 10 (score_max=10), or say from which score on an answer is right"
        )
        raise LogError(f"{where}: the score {score!r:.60} is {scale}: {advice}, with --right-from 7 (right_from=7)")
    return float(round(share)) if abs(share - round(share)) <= _ROUNDING else share


def as_frame(
    rows: list[Line], rates: Mapping[str, Price] | None, how: How, *, sampled: bool
) -> tuple[pl.DataFrame, list[str]]:
    """The rows as a frame, with tokens, money or both; and what there is to say of these.

    Args:
        rows: lines whose `correct` is a label; tokens and money that are not told are put into them.
        rates: prices of tokens, as `read_prices` gives them; None if none are given.
        how: how tokens are estimated, and whether prompts are kept.
        sampled: whether rows are samples.

    Raises LogError where a model has no price, or there is nothing to tell tokens by.
    """
    notes = _tell_money(rows) if rates is None else []
    priced = rates is not None or all(row.get("cost") is not None for row in rows)
    needed = rates is not None or not priced
    estimated = sum(_estimate(row, how.tokens) for row in rows) if needed else 0
    if estimated:
        origin = "as given" if how.tokens else f"estimated, {CHARACTERS:g} characters each"
        notes.append(f"tokens of {count(estimated, 'answer')} were not counted: they are {origin}")
    counted = all(row.get(name) is not None for row in rows for name in TOKENS)
    if needed and not counted:
        what = "tokens are not in the files" if rates is not None else "neither money nor tokens are in the files"
        ways = "nor texts to estimate them by: say how many a call takes, with --tokens IN,OUT (tokens=)"
        raise LogError(f"{what}, {ways}")
    for row in rows if rates is not None else ():
        used = Tokens(*(row.get(name) or 0 for name in (*TOKENS, *CACHED)))
        row["cost"] = price_for(rates or {}, row["model"]).money(used)
    if priced:  # a reader of the log mends those that are lost
        lost = tell_lost(mend_all([row["model"] for row in rows], [row["cost"] for row in rows])[1])
        notes += [] if lost is None else [lost]
    else:
        notes.append("no money in the table: tune it with --prices, or import it with them")
    scored = any(row["correct"] not in (None, 0, 1) for row in rows)
    answers = _answers(rows)
    if answers:
        what = "what was answered is in the column"
        notes.append(f"{what} {' and '.join(answers)}, for rcjax tune to compare")
    if "answer_key" in answers:
        what = "answers were taken out of longer replies: a policy that compares them needs the function that does so"
        notes.append(f"{what}, rcjax.Cascade(…, answer_key=…), and rcjax serve refuses it")
    counted &= needed or not any(row.get("estimated") for row in rows)
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


def _tell_money(rows: list[Line]) -> list[str]:
    """Give answers whose money is unknown, as a cache gave them, the mean of the others of their model; a note."""
    told: dict[str, list[float]] = {}
    for row in rows:
        told.setdefault(row["model"], []).extend([] if row.get("cost") is None else [row["cost"]])
    unknown = [row for row in rows if row.get("cost") is None]
    if not unknown or not all(told.values()):
        return []
    for row in unknown:
        row["cost"] = math.fsum(told[row["model"]]) / len(told[row["model"]])
    return [f"money of {count(len(unknown), 'answer')} is not told: it is the mean of the other answers of the model"]


def _estimate(row: Line, tokens: tuple[float, float] | None) -> bool:
    """Fill in the tokens of a row that were not counted, if there is a way; whether they are no count."""
    counted = not row.get("estimated") and all(row.get(name) is not None for name in TOKENS)
    if counted or (tokens is None and not row.get("estimated")):
        return False
    if tokens is not None:
        row |= {name: row.get("attempts", 1) * number for name, number in zip(TOKENS, tokens, strict=True)}
    return True


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
