"""The columns of a log: what they are called, what they may hold, and which of them a log must have."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rcjax.logs.errors import LogError, MissingPricesError, brief, listed
from rcjax.signals.replies import ROUNDING

TOKENS = ["input_tokens", "output_tokens"]

CACHED = ["cached_tokens", "cache_write_tokens"]  # of the input, what came from a cache and what was put into one


class Column(NamedTuple):
    """A column of a log."""

    advice: str
    """What to put into it, for messages."""
    least: float = 0.0
    """What its numbers are at least."""
    most: float = 1e300
    """What they are at most."""
    others: tuple[str, ...] = ()
    """What others call it; those for logprob are probabilities."""
    rounding: float = 0.0
    """How far above `most` numbers may come out by rounding."""


_OF_INPUT = "give how many of the input tokens they are, 0 or more, or leave the cell empty"
_TOOK = "that the answer took, 0 or more, or leave the cell empty"
_COUNT = "give the number of tokens, 0 or more"

#: The columns of every log.
COLUMNS = {
    "query": Column(
        "give an integer or a string that names the query",
        others=("id", "query_id", "question", "question_id", "request_id", "prompt_id", "example_id"),
    ),
    "model": Column("give the model's name, a string", others=("llm", "model_id", "model_name", "engine")),
    "correct": Column(
        "give true, false, 1, 0, or a score between",
        most=1,
        others=("is_correct", "right", "is_right", "label", "accuracy"),
    ),
    "logprob": Column(
        "log-probabilities are at most 0; if these are probabilities, name the column confidence",
        -math.inf,
        0,
        ("p", "p_yes", "p_true", "prob", "probability", "score", "conf"),
        ROUNDING,
    ),
    "confidence": Column(
        "confidences lie in [0, 1]; divide percentages by 100, name log-probabilities logprob",
        most=1,
        rounding=ROUNDING,
    ),
    "cost": Column("give the money that the call cost, 0 or more", others=("price", "usd", "dollars", "cost_usd")),
    "input_tokens": Column(_COUNT, others=("prompt_tokens", "tokens_in", "n_input_tokens")),
    "output_tokens": Column(_COUNT, others=("completion_tokens", "tokens_out", "n_output_tokens", "generated_tokens")),
    "cached_tokens": Column(_OF_INPUT, others=("cached_input_tokens", "cache_read_input_tokens", "cache_read_tokens")),
    "cache_write_tokens": Column(_OF_INPUT, others=("cache_creation_input_tokens", "cache_creation_tokens")),
    "seconds": Column(f"give the seconds {_TOOK}", most=1e9),
    "latency_ms": Column(f"give the milliseconds {_TOOK}", most=1e12),
}

#: Columns of numbers.
NUMBERS = [name for name in COLUMNS if name not in ("query", "model")]

#: What stands for a missing number, by its small letters.
MISSING = ("na", "n/a", "nan", "none", "null")

_VERDICT = Column("give a number from 0 (wrong) to 1 (right), or true or false", most=1)

CALL_COLUMNS = ["call_log", "shadow", "error", "unread", "asked", "prompt_digest", "estimated", "time"]  # of call logs

ANSWERS = ["answer_key", "answer"]  # what is compared with the answers of other models: the first that there is

SAMPLE = "sample"  # which of several answers of a model to a query

#: How long an answer took: what the numbers of the column are divided by, so that 300 ms are 0.3 s to the last bit.
SECONDS = {"seconds": 1.0, "latency_ms": 1000.0}

#: Columns that say one thing in two ways.
ONE_OF_TWO = (("logprob", "confidence"), tuple(SECONDS))

#: What polars puts behind the name of a column that is there a second time.
AGAIN = "_duplicated_0"

_JUDGE = re.compile("judged(_.+)?")  # what a judge says of an answer, or each of several judges

#: How to come by labels, for messages.
TO_LABEL = "rcjax label draws the answers that are worth labelling by hand"


def column_of(name: str) -> Column:
    """What there is to say of a column; any other one is a judge's."""
    return COLUMNS.get(name, _VERDICT)


def judge_columns(columns: Iterable[str]) -> list[str]:
    """Those of the columns that hold what judges say, under the names that are ours.

    >>> judge_columns(["query", "judged", "judged_by_llama", "judgement"])
    ['judged', 'judged_by_llama']
    """
    return [column for column in columns if _JUDGE.fullmatch(column)]


def known_columns(columns: Iterable[str]) -> set[str]:
    """All names that mean something, the judges' own among them as these columns have them."""
    others = (other for column in COLUMNS.values() for other in column.others)
    names = {*COLUMNS, *CALL_COLUMNS, *ANSWERS, SAMPLE, *others}
    return names | {f"{name}{AGAIN}" for name in names} | {*judge_columns(map(plain_name, columns))}


def in_place_of(own: str) -> tuple[str, ...]:
    """The columns of which one says what a column of ours says, itself among them.

    >>> in_place_of("logprob"), in_place_of("query")
    (('logprob', 'confidence'), ('query',))
    """
    return next((both for both in ONE_OF_TWO if own in both), (own,))


def plain_name(column: str) -> str:
    """The name of a column in the way that ours are written.

    >>> plain_name(" Input Tokens"), plain_name("LogProb")
    ('input_tokens', 'logprob')
    """
    return re.sub(r"[\s-]+", "_", column.strip("\ufeff").strip().lower())


def our_names(columns: Sequence[str], named: Mapping[str, str]) -> list[tuple[str, str]]:
    """(our name, the column) of the columns of a table; one that is spelt as ours overrides the others.

    Args:
        columns: of the table.
        named: what somebody called columns, by our names; no other column stands for these.

    >>> our_names(["Query", "model", "MODEL", "logprob", "p"], {"confidence": "p"})
    [('confidence', 'p'), ('query', 'Query'), ('model', 'model'), ('MODEL', 'MODEL')]
    """
    known = known_columns(columns)
    here = {own: column for own, column in named.items() if column in columns}
    taken = {one for own in here for one in in_place_of(own)}
    plain = [plain_name(column) for column in columns]
    pairs = [
        (own if own in known and own not in columns else column, column)
        for own, column in zip(plain, columns, strict=True)
    ]
    return [
        *here.items(),
        *((own, column) for own, column in pairs if own not in taken and column not in here.values()),
    ]


def require_once(name: str, columns: Sequence[str]) -> None:
    """Refuse a table in which a column occurs twice, or two of which one is needed; `columns` are our names."""
    for column in (*COLUMNS, *ANSWERS, SAMPLE, *judge_columns(columns)):
        if columns.count(column) > 1 or f"{column}{AGAIN}" in columns:
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
    needed += ["cost"] * (priced and "cost" in columns)  # of models that the prices do not name
    needed += [column for column in (SAMPLE, *SECONDS, *CACHED * (money == TOKENS)) if column in columns]
    return needed + [column for column in CALL_COLUMNS if "call_log" in columns and column in columns]


def tells_no_confidence(columns: Sequence[str]) -> bool:
    """Whether a log tells answers, and nothing that may be meant for a confidence: the answers can be compared still.

    >>> tells_no_confidence(["query", "answer"]), tells_no_confidence(["query", "answer", "prob"])
    (True, False)
    """
    if {"logprob", "confidence"} & {*columns} or not {*ANSWERS} & {*columns}:
        return False
    free = [column for column in columns if column not in COLUMNS]
    return not _renamings(["logprob"], free) and not _renamings(["confidence"], free)


def require_columns(name: str, needed: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks a column, and name those that may have been meant."""
    missing = [column for column in needed if column not in columns]
    if missing:
        either = {"logprob": "logprob (or confidence)", "cost": "cost (or input_tokens and output_tokens)"}
        lacking, several = ", ".join(either.get(column, column) for column in missing), len(missing) > 1
        meant = meant_for(missing, columns) or (f"; {TO_LABEL}" if missing == ["correct"] else "")
        named = " ".join(f"--column {column}=…" for column in missing)
        ways = f", or say what the file calls {'them' if several else 'it'}: rcjax import {name} {named} --out log.csv"
        advice = f"rename or add {'them' if several else 'it'}{meant}{ways if '.' in name else ''}"
        advice = f"no column{'s' * several} {lacking}: {advice}"
        raise LogError(f"{name}: {advice}; found: {listed(columns)}")


def meant_for(missing: Sequence[str], columns: Sequence[str]) -> str:
    """A question in brackets which columns were meant for those missing; "" where there is none like them.

    >>> meant_for(["logprob"], ["query", "p_true"])
    " (did you mean 'p_true' for 'confidence'?)"
    """
    pairs = _renamings(missing, [column for column in columns if column not in COLUMNS])
    return f" (did you mean {', '.join(pairs)}?)" if pairs else ""


def _renamings(missing: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Which columns may have been meant for those missing, by what others call them or by their spelling, each once."""
    free, pairs = list(columns), []
    for column in missing:
        synonyms = [name for name in free if plain_name(name) in column_of(column).others]
        close = synonyms or difflib.get_close_matches(column, free, n=1, cutoff=0.55)
        if close:
            free.remove(close[0])
            as_named = "confidence" if column == "logprob" and synonyms else column
            pairs.append(f"{brief(close[0])!r} for {as_named!r}")
    return pairs


#: What a person, or a program, writes for right and for wrong besides 1 and 0, by its small letters.
WORDS = {
    word: right
    for right, words in (
        (True, "true yes y right correct pass passed"),
        (False, "false no n wrong incorrect fail failed"),
    )
    for word in words.split()
}

#: Labels from which their size tells the scale.
_TELLING = 20


class Scoring(NamedTuple):
    """What a label is written as."""

    most: float = 1.0
    """The full score."""
    column: str = "correct"
    """That which is read, of the table at hand."""
    beside: bool = False
    """Labels from elsewhere count: a column `score` of the log is none."""

    def check(self) -> Scoring:
        """Itself; ValueError for a full score that is no positive number."""
        if not 0 < self.most < math.inf:
            raise ValueError(f"score_max is {self.most}; it must be a positive number, such as 10")
        return self

    def of_table(self, columns: Sequence[str]) -> Scoring:
        """The same with the column of a table that tells the labels: `score` where it has no `correct`.

        >>> Scoring().of_table(["query", "score", "logprob"]).column
        'score'
        """
        # A score beside no confidence may be meant for one: it is asked for, as before.
        plain = not self.beside and "correct" not in columns and "score" in columns and {*ONE_OF_TWO[0]} & {*columns}
        return self._replace(column="score" if plain else "correct")

    @property
    def advice(self) -> str:
        """What to put into the column, for messages."""
        if self.most != 1:
            return f"give the score, from 0 to {self.most:g}"
        return f"{COLUMNS['correct'].advice}, and the full score where it is not 1 (score_max=, --score-max)"

    def require_scale(self, name: str, labels: np.ndarray) -> None:
        """Refuse labels that look like shares of 1 where a larger full score is said: all would be nearly lost.

        Args:
            name: of the log.
            labels: of its answers, scores from 0 to 1.
        """
        if self.most > 1 and labels.size >= _TELLING and labels.max() <= 1 / self.most:
            what = f"no score is above 1, and the full score is said to be {self.most:g}"
            raise LogError(f"{name}: {what}: leave out --score-max (score_max=) where they are shares of it")


RIGHT_OR_WRONG = Scoring()


def are_scores(labels: np.ndarray) -> bool:
    """Whether some labels are neither right nor wrong."""
    return bool(labels.dtype != bool and ((labels > 0) & (labels < 1)).any())


def as_labels(values: np.ndarray) -> np.ndarray:
    """Labels as bool; as numbers where some are scores between right and wrong. Those that are missing are 0.

    >>> as_labels(np.array([1.0, np.nan])).tolist(), as_labels(np.array([1.0, 0.5])).tolist()
    ([True, False], [1.0, 0.5])
    """
    labels = np.nan_to_num(values)
    return labels if are_scores(labels) else labels == 1
