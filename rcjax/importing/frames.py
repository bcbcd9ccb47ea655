"""The rows of a log as a frame, with tokens, money or both; and what was assumed of these."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.wording import count
from rcjax.importing.how import How
from rcjax.logs.costs import mend, tell_lost
from rcjax.logs.errors import LogError
from rcjax.logs.prices import price_for
from rcjax.policy.answers import comparable

#: Characters above which an answer is shortened.
LONG = 100

_BEGINNING = 80

#: Characters of a token, where a file counts none: of English text.
CHARACTERS = 4.0


def as_frame(
    rows: list[dict[str, Any]], rates: Mapping[str, tuple[float, float]] | None, how: How, *, sampled: bool
) -> tuple[pl.DataFrame, list[str]]:
    """The rows as a frame, with tokens, money or both; and what there is to say of these.

    Args:
        rows: of the log; tokens and money that are not told are put into them.
        rates: prices of tokens, as `read_prices` gives them; None where none are given.
        how: how tokens are estimated, and whether answers and prompts are kept.
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
    label = "score" if any_score(rows) else "correct"
    schema |= {label: pl.Float64, "logprob": pl.Float64} | dict.fromkeys(_told_answers(rows, how, notes), pl.String)
    schema |= dict.fromkeys(("prompt", "text"), pl.String) if how.prompts else {}
    schema |= {"input_tokens": pl.Float64, "output_tokens": pl.Float64} if counted else {}
    schema |= {"cost": pl.Float64} if priced else {}
    schema |= {"seconds": pl.Float64} if any(row["seconds"] is not None for row in rows) else {}
    cells = {name: [row["correct" if name == label else name] for row in rows] for name in schema}
    frame = pl.DataFrame(cells, schema=schema)
    return frame.cast({"correct": pl.Int8}) if label == "correct" else frame, notes


def any_score(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some answers are neither right nor wrong."""
    return any(row["correct"] not in (None, 0, 1) for row in rows)


def _lost_costs(rows: list[dict[str, Any]]) -> list[str]:
    """What there is to say of costs that were lost."""
    costs: dict[str, list[float]] = {}
    for row in rows:
        costs.setdefault(row["model"], []).append(row["cost"])
    remark = tell_lost({model: (mend(np.array(of_model, float)), len(of_model)) for model, of_model in costs.items()})
    return [] if remark is None else [remark]


def _told_answers(rows: list[dict[str, Any]], how: How, notes: list[str]) -> list[str]:
    """The columns that tell what was answered, if there are some; of long texts, rows then keep less."""
    if not how.answers:
        return []
    long = sum(is_long(row["answer"]) for row in rows)
    for row in rows:
        row["answer"] = kept_text(row["answer"])
    columns = [name for name in ("answer", "answer_key") if any(row[name] is not None for row in rows)]
    if columns:
        shortened = f"; of {count(long, 'long text')} the beginning and a hash" if long else ""
        notes.append(
            f"what was answered is in the column {' and '.join(columns)}, for rcjax tune to compare{shortened}"
        )
    return columns


def _price(rows: list[dict[str, Any]], rates: Mapping[str, tuple[float, float]]) -> None:
    """Put into the rows what their tokens cost."""
    for row in rows:
        sent, received = price_for(rates, row["model"])
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


def is_long(text: str | None) -> bool:
    """Whether an answer is too long to be kept as it is."""
    return len(comparable(text, "text") or "") > LONG


def kept_text(text: str | None) -> str | None:
    """An answer on one line; of a long one the beginning, as texts are compared, and a hash of all; None for none.

    What is kept of two answers is equal, as a log compares answers, where the answers are. The choice that a long
    answer begins with can be told still.

    >>> kept_text(" The\\n Seine. "), kept_text("  ")
    ('The Seine.', None)
    >>> long = kept_text("The answer is B, as 1,000 is more," + " and so on" * 20)
    >>> long[:55], len(long)
    ('the answer is b, as 1000 is more, and so on and so on a', 99)
    >>> comparable(long, "choice"), long == kept_text("The answer is B,  as 1000 is more," + " and so on" * 20)
    ('b', True)
    """
    plain = comparable(text, "text")
    if text is None or plain is None:
        return None
    if len(plain) <= LONG:
        return " ".join(text.split())
    digest = hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{plain[:_BEGINNING].rstrip()}… h{digest}"
