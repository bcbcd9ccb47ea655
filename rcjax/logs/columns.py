"""The columns of a log: their names, their values, and the columns that a log must have."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rcjax.logs.errors import LogError, MissingPricesError, UnlabelledError, join_names, shorten
from rcjax.policy.signals.replies import ROUNDING

TOKENS = ["input_tokens", "output_tokens"]
CACHED = ["cached_tokens", "cache_write_tokens"]  # input tokens read from, and written to, a cache


class Column(NamedTuple):
    """A column of a log."""

    advice: str
    """Advice about its values, for messages."""
    least: float = 0.0
    """Least value."""
    most: float = 1e300
    """Largest value."""
    synonyms: tuple[str, ...] = ()
    """Usual other names of the column; for logprob, usual names of probabilities."""
    rounding: float = 0.0
    """Tolerance above `most`, for rounding errors."""


_PART = "give how many of the input tokens they are, 0 or more, or leave the cell empty"
_TOOK = "that the answer took, 0 or more, or leave the cell empty"
_COUNT = "give the number of tokens, 0 or more"

#: The columns of every log.
COLUMNS = {
    "query": Column(
        "give an integer or a string that names the query",
        synonyms=("id", "query_id", "question", "question_id", "request_id", "prompt_id", "example_id"),
    ),
    "model": Column("give the model's name, a string", synonyms=("llm", "model_id", "model_name", "engine")),
    "correct": Column(
        "give true, false, 1, 0, or a score between",
        most=1,
        synonyms=("is_correct", "right", "is_right", "label", "accuracy"),
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
    "cost": Column("give the money that the call cost, 0 or more", synonyms=("price", "usd", "dollars", "cost_usd")),
    "signal_cost": Column("give the part of the cost that a second question for the confidence cost, 0 or more"),
    "input_tokens": Column(_COUNT, synonyms=("prompt_tokens", "tokens_in", "n_input_tokens")),
    "output_tokens": Column(
        _COUNT, synonyms=("completion_tokens", "tokens_out", "n_output_tokens", "generated_tokens")
    ),
    "cached_tokens": Column(_PART, synonyms=("cached_input_tokens", "cache_read_input_tokens", "cache_read_tokens")),
    "cache_write_tokens": Column(_PART, synonyms=("cache_creation_input_tokens", "cache_creation_tokens")),
    "seconds": Column(f"give the seconds {_TOOK}", most=1e9),
    "latency_ms": Column(f"give the milliseconds {_TOOK}", most=1e12),
}

#: Columns of numbers.
NUMBERS = [name for name in COLUMNS if name not in ("query", "model")]

#: Words for a missing number, in lower case.
MISSING = ("na", "n/a", "nan", "none", "null")

PROMPT_DIGEST = "prompt_digest"  # equal for equal prompts

_VERDICT = Column("give a number from 0 (wrong) to 1 (right), or true or false", most=1)

#: Columns of call logs.
CALL_COLUMNS = [
    "call_log",
    "call",
    "shadow",
    "error",
    "has_no_confidence",
    "not_judged",
    "request_settings",
    PROMPT_DIGEST,
    "estimated",
    "time",
]

ANSWERS = ["answer_key", "answer"]  # the first one present is compared between models
SAMPLE = "sample"  # tells several answers of a model to a query apart

#: Columns of latency, with their divisors: a division turns 300 ms into 0.3 s to the last bit.
SECONDS = {"seconds": 1.0, "latency_ms": 1000.0}

#: Pairs of columns that hold the same quantity in two forms.
ONE_OF_TWO = (("logprob", "confidence"), tuple(SECONDS))

#: Suffix that polars gives to the second column of the same name.
REPEATED_SUFFIX = "_duplicated_0"

_JUDGE = re.compile("judged(_.+)?")  # names of judges' columns

#: Advice for a log without labels, for messages.
HOW_TO_LABEL = "rcjax label draws the answers that are worth labelling by hand"


def find_column(name: str) -> Column:
    """Return the description of a column; a name that is not in `COLUMNS` is a judge's."""
    return COLUMNS.get(name, _VERDICT)


def judge_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns of judges' verdicts, from canonical names.

    >>> judge_columns(["query", "judged", "judged_by_llama", "judgement"])
    ['judged', 'judged_by_llama']
    """
    return [column for column in columns if _JUDGE.fullmatch(column)]


def known_columns(columns: Iterable[str]) -> set[str]:
    """Return all names that have a meaning in a log: canonical names, synonyms, and the judges' columns in a table."""
    synonyms = (synonym for column in COLUMNS.values() for synonym in column.synonyms)
    names = {*COLUMNS, *CALL_COLUMNS, *ANSWERS, SAMPLE, *synonyms}
    return names | {f"{name}{REPEATED_SUFFIX}" for name in names} | {*judge_columns(map(plain_name, columns))}


def equivalent_columns(name: str) -> tuple[str, ...]:
    """Return the canonical names of the columns that may hold the quantity of a column, including its own name.

    >>> equivalent_columns("logprob"), equivalent_columns("query")
    (('logprob', 'confidence'), ('query',))
    """
    return next((pair for pair in ONE_OF_TWO if name in pair), (name,))


def plain_name(column: str) -> str:
    """Return the name of a column in the canonical spelling: lower case, with underscores.

    >>> plain_name(" Input Tokens"), plain_name("LogProb")
    ('input_tokens', 'logprob')
    """
    return re.sub(r"[\s-]+", "_", column.strip("\ufeff").strip().lower())


def canonical_names(columns: Sequence[str], assigned: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (canonical name, column) for the columns of a table; an exact spelling precedes other spellings.

    Args:
        columns: columns of the table.
        assigned: columns that the user has named, by canonical name; no other column stands for these names.

    >>> canonical_names(["Query", "model", "MODEL", "logprob", "p"], {"confidence": "p"})
    [('confidence', 'p'), ('query', 'Query'), ('model', 'model'), ('MODEL', 'MODEL')]
    """
    known = known_columns(columns)
    given = {name: column for name, column in assigned.items() if column in columns}
    taken = {equivalent for name in given for equivalent in equivalent_columns(name)}
    pairs = [*given.items()]
    for column in columns:
        name = plain_name(column)
        name = name if name in known and name not in columns else column
        if name not in taken and column not in given.values():
            pairs.append((name, column))
    return pairs


def require_unique_columns(name: str, columns: Sequence[str]) -> None:
    """Refuse a table with a column twice, or with both columns of a pair in `ONE_OF_TWO`; `columns` are canonical."""
    for column in (*COLUMNS, *ANSWERS, SAMPLE, *judge_columns(columns)):
        if columns.count(column) > 1 or f"{column}{REPEATED_SUFFIX}" in columns:
            raise LogError(f"{name}: column {column} occurs twice: drop one of the two")
    for pair in ONE_OF_TWO:
        if {*pair} <= {*columns}:
            raise LogError(f"{name}: columns {' and '.join(pair)} both occur: drop one of the two")


def needed_columns(name: str, columns: list[str], priced: bool, needed_label: str | None) -> list[str]:
    """Return the columns to read: query, model, label, confidence and cost or tokens, and optional columns.

    Args:
        name: name of the log, for messages.
        columns: canonical names of the log's columns.
        priced: whether the tokens have prices.
        needed_label: the required label column: "correct", in place of which a judge's column may stand, or "answer";
            None if labels come from another table, or are not needed.

    Raises `LogError` if a column is missing, or occurs twice.
    """
    judges = judge_columns(columns)
    require_unique_columns(name, columns)
    if "call_log" in columns and needed_label == "correct" and not judges and "correct" not in columns:
        forms = "query and answer (the right one), or query, model and correct"
        raise UnlabelledError(
            f"{name}: a call log does not tell right from wrong: give labels, a table of {forms}; {HOW_TO_LABEL}"
        )
    confidence = "confidence" if "confidence" in columns else "logprob"
    money = TOKENS if priced or ("cost" not in columns and {*TOKENS} & {*columns}) else ["cost"]
    label = [needed_label] if needed_label and (needed_label != "correct" or not judges) else []
    confidences = [] if lacks_confidence(columns) else [confidence]
    needed = ["query", "model", *label, *confidences, *money]
    require_columns(name, needed, columns)
    if money == TOKENS and not priced:
        raise MissingPricesError(f"{name}: token counts but no prices: give prices=, or add a column cost")
    compared = [column for column in ANSWERS if column in columns][:1]
    needed += [column for column in (*compared, *{"correct"} & {*columns}, *judges) if column not in needed]
    needed += ["cost"] * (priced and "cost" in columns)  # for models without a price
    needed += [column for column in (SAMPLE, "signal_cost", *SECONDS, *CACHED * (money == TOKENS)) if column in columns]
    return needed + [column for column in CALL_COLUMNS if "call_log" in columns and column in columns]


def lacks_confidence(columns: Sequence[str]) -> bool:
    """Return whether a log has answers to compare, but no column that looks like a confidence.

    >>> lacks_confidence(["query", "answer"]), lacks_confidence(["query", "answer", "prob"])
    (True, False)
    """
    if {"logprob", "confidence"} & {*columns} or not {*ANSWERS} & {*columns}:
        return False
    return not _guess_columns(["logprob", "confidence"], columns)


def require_columns(name: str, needed: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks a column; the message suggests similar columns."""
    missing = [column for column in needed if column not in columns]
    if missing:
        either = {"logprob": "logprob (or confidence)", "cost": "cost (or input_tokens and output_tokens)"}
        names = ", ".join(either.get(column, column) for column in missing)
        is_plural = len(missing) > 1
        suggestion = suggest_columns(missing, columns) or (f"; {HOW_TO_LABEL}" if missing == ["correct"] else "")
        if missing == TOKENS and "cost" in columns:
            suggestion += ", or leave out the prices, as the column cost has the money"
        guesses = {column: (named, guess) for column, guess, named in _guess_columns(missing, columns)}
        options = " ".join(
            f"--column {named}={shlex.quote(guess)}"
            for named, guess in (guesses.get(column, (column, "…")) for column in missing)
        )
        pronoun = "them" if is_plural else "it"
        other_way = f", or say what the file calls {pronoun}: rcjax import {name} {options} --out log.csv"
        advice = f"rename or add {pronoun}{suggestion}{other_way if '.' in name else ''}"
        raise LogError(f"{name}: no column{'s' * is_plural} {names}: {advice}; found: {join_names(columns)}")


def suggest_columns(missing: Sequence[str], columns: Sequence[str]) -> str:
    """Ask, in brackets, whether similar columns were meant for the missing ones; "" if no column is similar.

    >>> suggest_columns(["logprob"], ["query", "p_true"])
    " (did you mean 'p_true' for 'confidence'?)"
    """
    pairs = [f"{shorten(column)!r} for {named!r}" for _, column, named in _guess_columns(missing, columns)]
    return f" (did you mean {', '.join(pairs)}?)" if pairs else ""


def _guess_columns(missing: Sequence[str], columns: Sequence[str]) -> list[tuple[str, str, str]]:
    """Match each missing column with at most one unknown column, by synonym or spelling.

    Return (missing column, unknown column, canonical name for the unknown column): a probability is no logprob.
    """
    free, pairs = [column for column in columns if column not in COLUMNS], []
    for column in missing:
        synonyms = [name for name in free if plain_name(name) in find_column(column).synonyms]
        similar = synonyms or difflib.get_close_matches(column, free, n=1, cutoff=0.55)
        if similar:
            free.remove(similar[0])
            as_named = "confidence" if column == "logprob" and synonyms else column
            pairs.append((column, similar[0], as_named))
    return pairs


#: Words for right and wrong, in lower case.
WORDS: dict[str, bool] = dict.fromkeys(["true", "yes", "y", "right", "correct", "pass", "passed"], True)
WORDS |= dict.fromkeys(["false", "no", "n", "wrong", "incorrect", "fail", "failed"], False)

#: Number of labels from which the scale of scores is checked.
_MIN_CHECKED = 20


class Scoring(NamedTuple):
    """The scale of labels, and the column that holds them."""

    most: float = 1.0
    """The full score."""
    column: str = "correct"
    """Column of the table that holds the labels."""
    in_second_table: bool = False
    """Whether labels come from a second table: a column `score` of the log is then no label."""

    def check(self) -> Scoring:
        """Return self; ValueError unless the full score is a positive number."""
        if not 0 < self.most < math.inf:
            raise ValueError(f"score_max is {self.most}; it must be a positive number, such as 10")
        return self

    def for_columns(self, columns: Sequence[str]) -> Scoring:
        """Return the scoring with the label column of a table: `score` if it has no `correct`.

        >>> Scoring().for_columns(["query", "score", "logprob"]).column
        'score'
        """
        # In a table without a confidence, the score may be the confidence: a message then asks for the confidence.
        names = {*columns}
        is_score = not self.in_second_table and "correct" not in names and "score" in names and {*ONE_OF_TWO[0]} & names
        return self._replace(column="score" if is_score else "correct")

    @property
    def advice(self) -> str:
        """Advice about labels, for messages."""
        if self.most != 1:
            return f"give the score, from 0 to {self.most:g}"
        return f"{COLUMNS['correct'].advice}, and the full score where it is not 1 (score_max=, --score-max)"

    def require_scale(self, name: str, labels: np.ndarray) -> None:
        """Refuse rescaled labels that look like shares of 1 on a larger scale: every score would be near 0."""
        if self.most > 1 and labels.size >= _MIN_CHECKED and labels.max() <= 1 / self.most:
            problem = f"no score is above 1, and the full score is said to be {self.most:g}"
            raise LogError(f"{name}: {problem}: leave out --score-max (score_max=) if scores are shares of it")


RIGHT_OR_WRONG = Scoring()


def are_scores(labels: np.ndarray) -> bool:
    """Return whether some labels lie strictly between 0 and 1."""
    return bool(labels.dtype != bool and ((labels > 0) & (labels < 1)).any())


def as_labels(values: np.ndarray) -> np.ndarray:
    """Return labels as bool, or as numbers if some lie strictly between 0 and 1; a missing label (NaN) is 0.

    >>> as_labels(np.array([1.0, np.nan])).tolist(), as_labels(np.array([1.0, 0.5])).tolist()
    ([True, False], [1.0, 0.5])
    """
    labels = np.nan_to_num(values)
    return labels if are_scores(labels) else labels == 1
