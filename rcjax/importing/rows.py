"""The rows of a log to come: a label from what a scorer gave, and a frame with tokens, money or both."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from rcjax._base.files import write_atomically
from rcjax._base.wording import count
from rcjax.importing.answers import How
from rcjax.logs.errors import LogError
from rcjax.logs.prices import price_for

#: What scorers write for right, half right and wrong, as shares of the full score: Inspect's letters, and words.
_WORDS = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0} | {
    word: value
    for value, words in ((1.0, "yes true correct right pass passed"), (0.0, "no false incorrect wrong fail failed"))
    for word in words.split()
}

_ROUNDING = 1e-9  # a mean of scores that are all full may end that much below

#: Characters of a token, where a file counts none: of English text.
CHARACTERS = 4.0


def label_of(score: Any, right_from: float | None, most: float, where: str) -> float | None:
    """What a score is as a label: 1 for right, 0 for wrong, between them a score; None where nothing was scored.

    Args:
        score: a letter (C, I, P, N), a word, a truth value or a number; nothing is None, or not a number.
        right_from: from which score on an answer counts as right, on whatever scale; None: scores stay scores.
        most: the full score, where scores stay scores.
        where: the place of the score, for messages.

    Raises LogError for a score below 0 or above the full one without `right_from`, and for what is no score.

    >>> label_of("C", None, 1, "a"), label_of("P", None, 1, "a"), label_of(7, None, 10, "a"), label_of(0.5, 0.5, 1, "a")
    (1.0, 0.5, 0.7, 1.0)
    """
    value = _number(score, most, where)
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


def _number(score: Any, most: float, where: str) -> float:
    """A score on its scale; NaN for none."""
    if score is None:
        return math.nan
    if isinstance(score, bool):
        return most * score
    if isinstance(score, int | float):
        return float(score)
    if isinstance(score, str):
        word = score.strip().lower()
        if word in _WORDS:
            return most * _WORDS[word]
        try:
            return float(word)
        except ValueError:
            pass
    raise LogError(f"{where}: the score {score!r:.60} is neither a number nor C, I, P or N: choose another scorer")


def as_frame(
    rows: list[dict[str, Any]], rates: Mapping[str, tuple[float, float]] | None, how: How, *, sampled: bool
) -> tuple[pl.DataFrame, list[str]]:
    """The rows as a frame, with tokens, money or both; and what there is to say of these.

    Args:
        rows: of the log; tokens and money that are not told are put into them.
        rates: prices of tokens, as `read_prices` gives them; None where none are given.
        how: how tokens are estimated, and whether prompts are kept.
        sampled: whether rows are samples.

    Raises LogError where a model has no price, or there is nothing to tell tokens by.
    """
    notes: list[str] = []
    needed = rates is not None or any(row["cost"] is None for row in rows)
    estimated = sum(_estimate(row, how) for row in rows) if needed else 0
    if estimated:
        origin = "as given" if how.tokens else f"estimated, {CHARACTERS:g} characters each"
        notes.append(f"tokens of {count(estimated, 'answer')} were not counted: they are {origin}")
    counted = all(row["input_tokens"] is not None and row["output_tokens"] is not None for row in rows)
    priced = rates is not None or all(row["cost"] is not None for row in rows)
    if needed and not counted:
        what = "tokens are not in the files" if rates is not None else "neither money nor tokens are in the files"
        ways = "nor texts to estimate them by: say how many a call takes, with --tokens IN,OUT (tokens=)"
        raise LogError(f"{what}, {ways}")
    for row in rows if rates is not None else ():
        sent, received = price_for(rates or {}, row["model"])
        row["cost"] = (row["input_tokens"] * sent + row["output_tokens"] * received) / 1e6
    notes += [] if priced else ["no money in the table: tune it with --prices, or import it with them"]
    label = "score" if any(row["correct"] not in (None, 0, 1) for row in rows) else "correct"
    numbers = [("logprob", True), ("input_tokens", counted), ("output_tokens", counted), ("cost", priced)]
    numbers.append(("seconds", any(row["seconds"] is not None for row in rows)))
    answers = [name for name in ("answer", "answer_key") if any(row[name] is not None for row in rows)]
    if answers:
        notes.append(f"what was answered is in the column {' and '.join(answers)}, for rcjax tune to compare")
    texts = [*answers, *["prompt"] * how.prompts]
    schema = {"query": pl.String, "model": pl.String, **({"sample": pl.Int64} if sampled else {}), label: pl.Float64}
    logprob, *others = [name for name, there in numbers if there]
    schema |= {logprob: pl.Float64} | dict.fromkeys(texts, pl.String) | dict.fromkeys(others, pl.Float64)
    cells = {name: [row["correct" if name == label else name] for row in rows] for name in schema}
    frame = pl.DataFrame(cells, schema=schema)
    return frame.cast({"correct": pl.Int8}) if label == "correct" else frame, notes


def _estimate(row: dict[str, Any], how: How) -> bool:
    """Fill in the tokens of a row that were not counted, if there is a way; whether there was."""
    if row["input_tokens"] is not None and row["output_tokens"] is not None:
        return False
    if how.tokens is not None:
        sent, received = (row["calls"] * tokens for tokens in how.tokens)
    elif row["characters"] is not None:
        sent, received = (max(1.0, round(length / CHARACTERS)) for length in row["characters"])
    else:
        return False
    row["input_tokens"], row["output_tokens"] = float(sent), float(received)
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
