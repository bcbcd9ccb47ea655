"""The columns of a log: what they are called, what they may hold, and which of them a log must have."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from rcjax.logs.dialects import plain_name
from rcjax.logs.errors import LogError, MissingPricesError, brief, listed
from rcjax.signals.replies import ROUNDING

TOKENS = ["input_tokens", "output_tokens"]

CACHED = ["cached_tokens", "cache_write_tokens"]  # of the input, what came from a cache and what was put into one


ADVICE = {
    "query": "give an integer or a string that names the query",
    "model": "give the model's name, a string",
    "correct": "give true, false, 1, 0, or a score between",
    "logprob": "log-probabilities are at most 0; if these are probabilities, name the column confidence",
    "confidence": "confidences lie in [0, 1]; divide percentages by 100, name log-probabilities logprob",
    "cost": "give the money that the call cost, 0 or more",
    **dict.fromkeys(TOKENS, "give the number of tokens, 0 or more"),
    **dict.fromkeys(CACHED, "give how many of the input tokens they are, 0 or more, or leave the cell empty"),
    "seconds": "give the seconds that the answer took, 0 or more, or leave the cell empty",
    "latency_ms": "give the milliseconds that the answer took, 0 or more, or leave the cell empty",
}


#: What others call the columns; those for logprob are probabilities.
_OTHER_NAMES = {
    "query": ("id", "query_id", "question", "question_id", "request_id", "prompt_id", "example_id"),
    "model": ("llm", "model_id", "model_name", "engine"),
    "correct": ("is_correct", "right", "is_right", "label", "accuracy"),
    "logprob": ("p", "p_yes", "p_true", "prob", "probability", "score", "conf"),
    "cost": ("price", "usd", "dollars", "cost_usd"),
    "input_tokens": ("prompt_tokens", "tokens_in", "n_input_tokens"),
    "cached_tokens": ("cached_input_tokens", "cache_read_input_tokens", "cache_read_tokens"),
    "cache_write_tokens": ("cache_creation_input_tokens", "cache_creation_tokens"),
    "output_tokens": ("completion_tokens", "tokens_out", "n_output_tokens", "generated_tokens"),
}


CALL_COLUMNS = ["call_log", "shadow", "error", "unread", "asked", "prompt_digest", "estimated"]  # of call logs alone

ANSWERS = ["answer_key", "answer"]  # what is compared with the answers of other models: the first that there is

SAMPLE = "sample"  # which of several answers of a model to a query

#: How long an answer took: what the numbers of the column are divided by, so that 300 ms are 0.3 s to the last bit.
SECONDS = {"seconds": 1.0, "latency_ms": 1000.0}

#: Columns that say one thing in two ways.
ONE_OF_TWO = (("logprob", "confidence"), tuple(SECONDS))

_JUDGE = re.compile("judged(_.+)?")  # what a judge says of an answer, or each of several judges

#: How to come by labels, for messages.
TO_LABEL = "rcjax label draws the answers that are worth labelling by hand"


#: All names of columns that mean something here, with polars' names for their second columns.
_NAMES = {
    name + again
    for name in (
        *ADVICE,
        *CALL_COLUMNS,
        *ANSWERS,
        SAMPLE,
        *(other for others in _OTHER_NAMES.values() for other in others),
    )
    for again in ("", "_duplicated_0")
}


_LIMITS = {
    "correct": (0, 1),
    "logprob": (-math.inf, 0),
    "confidence": (0, 1),
    **{column: (0, 1e9 * unit) for column, unit in SECONDS.items()},
}


def advice_on(column: str) -> str:
    """What to put into a column, for messages."""
    if _JUDGE.fullmatch(column):
        return "give a number from 0 (wrong) to 1 (right), or true or false"
    return ADVICE[column]


def rounding_of(column: str) -> float:
    """How far above the largest number that a column may hold its numbers may come out by rounding."""
    return ROUNDING if column in ("logprob", "confidence") else 0.0


def limits_of(column: str) -> tuple[float, float]:
    """(least, largest) number that a column may hold."""
    return (0, 1) if _JUDGE.fullmatch(column) else _LIMITS.get(column, (0, 1e300))


def judge_columns(columns: Iterable[str]) -> list[str]:
    """Those of the columns that hold what judges say, under the names that are ours.

    >>> judge_columns(["query", "judged", "judged_by_llama", "judgement"])
    ['judged', 'judged_by_llama']
    """
    return [column for column in columns if _JUDGE.fullmatch(column)]


def known_columns(columns: Iterable[str]) -> set[str]:
    """All names that mean something, the judges' own among them as these columns have them."""
    return _NAMES | {*judge_columns(map(plain_name, columns))}


def in_place_of(own: str) -> tuple[str, ...]:
    """The columns of which one says what a column of ours says, itself among them.

    >>> in_place_of("logprob"), in_place_of("query")
    (('logprob', 'confidence'), ('query',))
    """
    return next((both for both in ONE_OF_TWO if own in both), (own,))


def as_named(columns: list[str], ours: list[str], named: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(columns, our names of them) where somebody named some columns: no other column stands for these.

    Args:
        columns: of a table.
        ours: our names of them, as they are spelt.
        named: columns by our names; those that the table lacks are passed over.

    >>> as_named(["query", "logprob", "p_true"], ["query", "logprob", "p_true"], {"confidence": "p_true"})
    (['p_true', 'query'], ['confidence', 'query'])
    """
    here = {own: column for own, column in named.items() if column in columns}
    taken = {one for own in here for one in in_place_of(own)}
    others = [
        (column, own)
        for column, own in zip(columns, ours, strict=True)
        if own not in taken and column not in here.values()
    ]
    return [*here.values(), *(column for column, _ in others)], [*here, *(own for _, own in others)]


def require_once(name: str, columns: Sequence[str]) -> None:
    """Refuse a table in which a column occurs twice, or two of which one is needed; `columns` are our names."""
    for column in (*ADVICE, *ANSWERS, SAMPLE, *judge_columns(columns)):
        if columns.count(column) > 1 or f"{column}_duplicated_0" in columns:  # the latter is polars' new name
            raise LogError(f"{name}: column {column} occurs twice: drop one of the two")
    for both in ONE_OF_TWO:
        if {*both} <= {*columns}:
            raise LogError(f"{name}: columns {' and '.join(both)} both occur: drop one of the two")


def needed_columns(name: str, columns: list[str], priced: bool, needed_label: str | None) -> list[str]:
    """The columns to read: query, model, what tells right from wrong, the confidence and what the costs come from.

    Args:
        name: the log's, for messages.
        columns: those that it has, under the names that are ours.
        priced: whether tokens have prices.
        needed_label: the column that must be there to tell right from wrong: "correct", which may be missing beside a
            judge's, or "answer"; None if labels come from elsewhere, or none are needed.

    Raises `LogError` where one is missing, or is there twice.
    """
    judges = judge_columns(columns)
    require_once(name, columns)
    if "call_log" in columns and needed_label == "correct" and not judges and "correct" not in columns:
        forms = "query and answer (the right one), or query, model and correct"
        raise LogError(
            f"{name}: a call log does not tell right from wrong: give labels, a table of {forms}; {TO_LABEL}"
        )
    confidence = "confidence" if "confidence" in columns else "logprob"
    money = TOKENS if priced or ("cost" not in columns and {*TOKENS} & {*columns}) else ["cost"]
    truth = [needed_label] if needed_label and (needed_label != "correct" or not judges) else []
    confidences = [] if tells_no_confidence(columns) else [confidence]
    needed = ["query", "model", *truth, *confidences, *money]
    require_columns(name, needed, columns)
    if money == TOKENS and not priced:
        raise MissingPricesError(f"{name}: token counts but no prices: give prices=, or add a column cost")
    compared = [column for column in ANSWERS if column in columns][:1]
    needed += [column for column in (*compared, *{"correct"} & {*columns}, *judges) if column not in needed]
    needed += [column for column in (SAMPLE, *SECONDS, *CACHED * (money == TOKENS)) if column in columns]
    return needed + [column for column in CALL_COLUMNS if "call_log" in columns and column in columns]


def tells_no_confidence(columns: Sequence[str]) -> bool:
    """Whether a log tells answers, and nothing that may be meant for a confidence: the answers can be compared still.

    >>> tells_no_confidence(["query", "answer"]), tells_no_confidence(["query", "answer", "prob"])
    (True, False)
    """
    if {"logprob", "confidence"} & {*columns} or not {*ANSWERS} & {*columns}:
        return False
    free = [column for column in columns if column not in ADVICE]
    return not _renamings(["logprob"], free) and not _renamings(["confidence"], free)


def require_columns(name: str, needed: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks a column, and name those that may have been meant."""
    missing = [column for column in needed if column not in columns]
    if missing:
        either = {"logprob": "logprob (or confidence)", "cost": "cost (or input_tokens and output_tokens)"}
        lacking = ", ".join(either.get(column, column) for column in missing)
        meant = meant_for(missing, columns) or (f"; {TO_LABEL}" if missing == ["correct"] else "")
        raise LogError(f"{name}: rename or add missing columns {lacking}{meant}; found: {listed(columns)}")


def meant_for(missing: Sequence[str], columns: Sequence[str]) -> str:
    """A question in brackets which columns were meant for those missing; "" where there is none like them.

    >>> meant_for(["logprob"], ["query", "p_true"])
    " (did you mean 'p_true' for 'confidence'?)"
    """
    pairs = _renamings(missing, [column for column in columns if column not in ADVICE])
    return f" (did you mean {', '.join(pairs)}?)" if pairs else ""


def _renamings(missing: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Which columns may have been meant for those missing, by what others call them or by their spelling, each once."""
    free, pairs = list(columns), []
    for column in missing:
        synonyms = [name for name in free if plain_name(name) in _OTHER_NAMES.get(column, ())]
        close = synonyms or difflib.get_close_matches(column, free, n=1, cutoff=0.55)
        if close:
            free.remove(close[0])
            as_named = "confidence" if column == "logprob" and synonyms else column
            pairs.append(f"{brief(close[0])!r} for {as_named!r}")
    return pairs
