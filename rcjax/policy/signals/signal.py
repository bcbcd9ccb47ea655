"""Signals: options of a request, and the confidence in its reply, read from tokens, from samples or from words.

Signals have names on the command line, and records as JSON in logs and policies. Standard library only.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rcjax._base.codec import to_json_value
from rcjax.policy.signals.answers import chosen_choice, normalise_answer
from rcjax.policy.signals.replies import (
    NO_LOGPROBS,
    OneReply,
    Reading,
    Reply,
    SignalError,
    Token,
    last_question,
    log_sum,
)
from rcjax.policy.signals.reply_checks import CHECK_NAMES, ReplyCheck, is_reply_check

_WRAPPING = "▁Ġ \t\r\nĊ()[]{}<>*_`\"'.,:;“”‘’"  # characters that tokenizers and formats put around a letter


_ASK_FOR_LETTER = "ask for the letter alone"


def choice_logprob(
    tokens: Sequence[Token] | None, choices: Iterable[str], given: str | None = None
) -> tuple[str, float]:
    """Return (choice, log-probability) of an answer that begins with the name of one of several choices.

    The probability of the choice is summed over its spellings among the likeliest tokens, such as "A", " A", "(A", "A."
    and "a". Tokens before it without a letter, such as "(" or "**", are skipped, and their probability is a factor. The
    probability is not divided by that of all choices together: probability on other tokens is doubt, too, and the
    division would lose digits close to 1.

    Args:
        tokens: tokens of the reply.
        choices: names of the choices, each a single token.
        given: the choice, as read from the text; by default the choice that the generated token names, or else the
            likeliest choice. At temperatures above 0 another choice may be likelier.

    Raises SignalError if log-probabilities are missing, for all tokens, for all choices, or for the given choice.

    >>> first = Token("(", math.log(0.6), {"A": math.log(0.2), "B": math.log(0.2)})
    >>> second = Token("B", -0.1, {"B": math.log(0.75), " b": math.log(0.15), "A": math.log(0.1)})
    >>> choice, logprob = choice_logprob([first, second], "ABCD")
    >>> choice, round(math.exp(logprob), 3)
    ('B', 0.74)
    """
    if not tokens:
        raise SignalError(NO_LOGPROBS)
    names = list(choices)
    logprobs = _sum_spellings(tokens, names)
    if not logprobs:
        listed = ", ".join(names)
        raise SignalError(f"none of the choices {listed} is among the likeliest first tokens: {_ASK_FOR_LETTER}")
    choice = given or _generated_choice(tokens, names) or max(logprobs, key=logprobs.__getitem__)
    if choice not in logprobs:
        raise SignalError(f"the choice made, {choice}, is not among the likeliest first tokens: {_ASK_FOR_LETTER}")
    return choice, logprobs[choice]


def verification_logprob(
    tokens: Sequence[Token] | None, yes: Sequence[str] = ("Y", "Yes"), no: Sequence[str] = ("N", "No")
) -> float:
    """Return the log-probability that a model says yes to the question whether an answer is right.

    The probability is summed over all spellings of `yes`, and not divided by that of yes and no together; −inf if only
    a no is among the likeliest tokens. Raises SignalError if log-probabilities are missing, or the likeliest tokens
    contain neither a yes nor a no.

    >>> verification_logprob([Token("Yes", -0.3, {"Yes": math.log(0.7), "y": math.log(0.1), "No": math.log(0.2)})])
    -0.223...
    """
    if not tokens:
        raise SignalError(NO_LOGPROBS)
    logprobs = _sum_spellings(tokens, [*yes, *no])
    if not logprobs:
        raise SignalError(f"neither {yes[0]} nor {no[0]} is among the likeliest first tokens of the verification")
    return log_sum([logprobs[word] for word in yes if word in logprobs])


def mean_logprob(tokens: Sequence[Token] | None) -> float:
    """Return the mean log-probability of the tokens of a reply: the log of their geometric mean probability.

    >>> mean_logprob([Token("Par", -0.2), Token("is", -0.1)])
    -0.15...
    """
    if not tokens:
        raise SignalError(NO_LOGPROBS)
    try:
        return min(0.0, math.fsum(token.logprob for token in tokens) / len(tokens))
    except OverflowError:  # a probability that is 0 as a float
        return -math.inf


def vote_share(answers: Iterable[str | None], normalise: Callable[[str], str] = normalise_answer) -> tuple[str, float]:
    """Return (most frequent answer, its share of the samples); answers are compared in the form of `normalise`.

    Ties go to the earliest answer; the answer is returned in its first spelling. Samples without an answer (None, or
    empty in that form) count in the denominator only. Raises SignalError if no sample has an answer.

    >>> vote_share(["Paris", " paris", "Lyon", None])
    ('Paris', 0.5)
    """
    spellings: dict[str, str] = {}
    votes: dict[str, int] = {}
    total = 0
    for answer in answers:
        total += 1
        plain = normalise(answer or "")
        if plain:
            spellings.setdefault(plain, answer or "")
            votes[plain] = votes.get(plain, 0) + 1
    if not votes:
        raise SignalError("no sample has an answer: raise max_tokens, or look at the replies")
    winner = max(votes, key=votes.__getitem__)
    return spellings[winner], votes[winner] / total


_NUMBER = (  # not part of a range, a date or a longer number: its value, a percent sign, or a sign and a denominator
    r"(?<![\w.,/–-])(\d+(?:\.\d+)?|\.\d+)"
    r"(?:\s*(%|percent\b|per cent\b)|\s*(/|out of)\s*(\d+(?:\.\d+)?))?+(?!\w|/|\s*[–-]\s*\d|[.,]\d)"
)


_BETWEEN = r"\W*(?:(?:level|score|is|of|in|my|answer|this|about|around)\W*){0,4}"

_LABELLED = re.compile(r"confiden\w*" + _BETWEEN + _NUMBER, re.I)

_ANY = re.compile(_NUMBER, re.I)


def stated_confidence(text: str) -> float:
    """Read the probability in [0, 1] that a text states: "85%", "0.85", "Confidence: 85/100", "about 85 percent".

    A number after the word "confidence" overrides others. Without that word, the number must be the only percentage or
    ratio, or the whole text. A bare number is a probability and needs a decimal point: "1" or "85" could be on any
    scale. Two numbers a/b that add up to 100, such as 50/50, are odds. Raises SignalError for a text that states
    no confidence, several, or one outside [0, 1].

    >>> stated_confidence("The answer is 42. Confidence: 85/100"), stated_confidence("0.9")
    (0.85, 0.9)
    """
    text = unicodedata.normalize("NFKC", text).strip(" \t\r\n*~≈")
    statements = [_read_probability(*match.groups()) for match in _LABELLED.finditer(text)]
    if not statements:
        alone = _ANY.fullmatch(text.rstrip("."))
        marked = [match for match in _ANY.finditer(text) if match[2] or match[4]]
        statements = [_read_probability(*match.groups()) for match in ([alone] if alone else marked)]
    values = sorted({*statements})
    if len(values) == 1:
        return values[0]
    advice = 'ask for "Confidence: NN%" alone'
    if not values:
        raise SignalError(f"the text states no confidence: {advice}")
    raise SignalError(f"the text states more than one confidence ({', '.join(f'{v:g}' for v in values)}): {advice}")


def _read_probability(number: str, percent: str | None, sign: str | None, total: str | None) -> float:
    scale = 100.0 if percent else float(total) if total else 1.0
    if sign == "/" and float(number) + scale == 100.0:  # odds, such as 50/50
        scale = 100.0
    if not percent and not total and "." not in number and number != "0":
        raise SignalError(f'the confidence {number} could be on any scale: ask for "{number}%" or "0.…"')
    if not 0 < scale < math.inf or float(number) > scale:
        raise SignalError(f"the confidence {number}{percent or ''}{f'/{total}' if total else ''} is above 1")
    return float(number) / scale


def _sum_spellings(tokens: Sequence[Token], words: Iterable[str]) -> dict[str, float]:
    """Return the log-probability of each word found at the beginning of the tokens, summed over its spellings."""
    names = {_unwrapped(word): word for word in words}
    logprobs: dict[str, list[float]] = {}
    path = 0.0  # log-probability of the tokens passed through
    for token in tokens:
        for text, logprob in {token.text: token.logprob, **token.top}.items():
            if _unwrapped(text) in names:
                logprobs.setdefault(names[_unwrapped(text)], []).append(path + logprob)
        if _unwrapped(token.text):
            break
        path += token.logprob
    return {word: log_sum(values) for word, values in logprobs.items()}


def _generated_choice(tokens: Sequence[Token], choices: Sequence[str]) -> str | None:
    """Return the choice that the first generated token with a letter names; None if the token is another word."""
    first = next((bare for token in tokens if (bare := _unwrapped(token.text))), None)
    return next((choice for choice in choices if _unwrapped(choice) == first), None)


def _unwrapped(text: str) -> str:
    return text.strip(_WRAPPING).casefold()


VERIFICATION = (
    "Here is a question and an answer that was proposed for it.\n\nQuestion:\n{question}\n\nProposed answer:\n{answer}"
    "\n\nIs the proposed answer correct? Reply with the single letter Y if it is, or N if it is not."
)


STATED = (
    "How likely is it that your answer is correct? Reply with a percentage from 0% to 100% and nothing else, "
    "for example: 70%"
)


class Signal(Protocol):
    """The protocol of signals: options of a request, an optional second question, and the reading of the replies."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of `chat.completions.create` for the answer, such as `logprobs`, `top_logprobs` or `n`."""
        ...

    @property
    def second_options(self) -> Mapping[str, Any] | None:
        """Options of the second question, for estimates of its cost; None if the signal never asks one."""
        ...

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]] | None:
        """Return (messages, options) of a second question to the same model; None if the first reply is enough."""
        ...

    def read(self, reply: Reply, second: Reply | None) -> Reading:
        """Return the answer and its confidence; SignalError if the replies lack either."""
        ...


def _tokens_of(reply: Reply | None) -> tuple[Token, ...] | None:
    """Return the tokens of a reply. Raises SignalError for tokens that cannot be used."""
    if reply is not None and reply.tokens_problem is not None:
        raise SignalError(reply.tokens_problem)
    return None if reply is None else reply.tokens


@dataclass(frozen=True, slots=True)
class Choice(OneReply):
    """The signal for multiple choice, `task="choice"`: the probability of the picked choice, by `choice_logprob`.

    A reply that names no choice has the answer "", which is never right and equals no other; its confidence is that of
    the likeliest choice.

    Args:
        choices: names of the choices, each a single token.
        top: number of likeliest tokens to ask for (OpenAI and vLLM give up to 20, some endpoints fewer).
    """

    choices: tuple[str, ...] = ("A", "B", "C", "D")
    top: int = 20

    @property
    def options(self) -> Mapping[str, Any]:
        """Log-probabilities of the `top` likeliest tokens."""
        return {"logprobs": True, "top_logprobs": self.top}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """Return the picked choice and its log-probability."""
        chosen = chosen_choice(reply.text, self.choices)
        return Reading(chosen or "", choice_logprob(_tokens_of(reply), self.choices, chosen)[1])


@dataclass(frozen=True, slots=True)
class Verification:
    """The signal for free text: the probability of yes when the model is asked whether its answer is right.

    Args:
        template: the second question; `{question}` (the user's last message) and `{answer}` are filled in.
        top: number of likeliest tokens to ask for.
        yes, no: the words that count.
        second_options: options of the second question.
    """

    template: str = VERIFICATION
    top: int = 20
    yes: tuple[str, ...] = ("Y", "Yes")
    no: tuple[str, ...] = ("N", "No")
    second_options: Mapping[str, object] = field(default_factory=lambda: {"max_tokens": 1, "temperature": 0.0})

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the first request: none."""
        return {}

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """Return the second question, without the conversation, so that it is cheap."""
        # One pass: braces in a question or an answer are not placeholders.
        fillings = {"{question}": last_question(messages), "{answer}": reply.text}
        question = re.sub(r"\{question\}|\{answer\}", lambda match: fillings[match[0]], self.template)
        options = {**self.second_options, "logprobs": True, "top_logprobs": self.top}
        return [{"role": "user", "content": question}], options

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """Return the answer, and the log-probability of yes."""
        return Reading(reply.text, verification_logprob(_tokens_of(second), self.yes, self.no))


@dataclass(frozen=True, slots=True)
class Votes(OneReply):
    """The signal for endpoints with `n`: the share of the samples that give the most frequent answer.

    Args:
        samples: number of samples.
        temperature: temperature of the samples; None leaves it to the options of the request.
        normalise: function to the form in which answers are compared; it may extract the number from a text.
        separate: whether a cascade sends a separate request for each sample, which works at any endpoint.
    """

    samples: int = 5
    temperature: float | None = 0.7
    normalise: Callable[[str], str] = normalise_answer
    separate: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """Number of samples, unless each has its own request, and the temperature."""
        number = {} if self.separate else {"n": self.samples}
        return number if self.temperature is None else {**number, "temperature": self.temperature}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """Return the most frequent answer, the log of its share, and the first sample that gives it as the text.

        The answer is in the form of `normalise`, or of `normalise.answer` if `normalise` is an object with that method.
        """
        if len(reply.texts) < self.samples:
            reason = "the others failed" if self.separate else "the endpoint ignores n; use rcjax.policy.signals.Stated"
            raise SignalError(f"the reply has {len(reply.texts)} of {self.samples} samples: {reason}")
        answer, share = vote_share(reply.texts, self.normalise)
        normalise = getattr(self.normalise, "answer", self.normalise)
        return Reading(normalise(answer), math.log(share), answer)


@dataclass(frozen=True, slots=True)
class Stated:
    """The signal for any endpoint: the probability that the model states.

    Args:
        question: second question, for a percentage; None if the reply itself states the probability.
        second_options: options of the second question; None without one.
    """

    question: str | None = STATED
    second_options: Mapping[str, object] | None = field(default_factory=lambda: {"max_tokens": 10, "temperature": 0.0})

    def __post_init__(self) -> None:
        if self.question is None:
            object.__setattr__(self, "second_options", None)

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the first request: none."""
        return {}

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]] | None:
        """Return the conversation with the answer, and the question for a percentage."""
        if self.question is None:
            return None
        after = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": self.question}]
        return [*messages, *after], self.second_options or {}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """Return the answer, and the log of the stated probability."""
        stated = stated_confidence((second or reply).text)
        return Reading(reply.text, math.log(stated) if stated > 0 else -math.inf)


@dataclass(frozen=True, slots=True)
class MeanLogprob(OneReply):
    """The signal for short free text: the mean log-probability of the tokens of the answer."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The log-probability of each token."""
        return {"logprobs": True}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """Return the answer, and the mean log-probability of its tokens."""
        return Reading(reply.text, mean_logprob(_tokens_of(reply)))


_KINDS: dict[str, Callable[..., Any]] = {
    "choice": Choice,
    "verification": Verification,
    "votes": Votes,
    "stated": Stated,
    "mean": MeanLogprob,
}

#: The names of signals on the command line and in files.
SIGNAL_NAMES = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class ChoiceNormaliser:
    """The normalisation of votes on choices."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return the name of the choice that a reply picks; "" if it picks none."""
        return chosen_choice(text, self.choices) or ""


def require_signal_name(name: str) -> None:
    """Raise ValueError for a name of neither a signal nor a check of replies.

    >>> require_signal_name("regex:^(yes|no)$")
    """
    if is_reply_check(name):
        ReplyCheck(name)
    elif name not in SIGNAL_NAMES:
        raise ValueError(
            f"{name!r} is not a signal: give {', '.join(SIGNAL_NAMES)}, or a check: {', '.join(CHECK_NAMES)}"
        )


def signal_by_name(name: str, choices: Sequence[str] = ()) -> Signal:
    """Build the signal of a name, for questions with the given choices. Raises ValueError for an unknown name.

    >>> signal_by_name("choice", "AB")
    Choice(choices=('A', 'B'), top=20)
    """
    require_signal_name(name)
    if is_reply_check(name):
        return ReplyCheck(name)
    choices = tuple(choices)
    if name == "choice":
        return Choice(choices) if choices else Choice()
    if name == "votes" and choices:
        return Votes(normalise=ChoiceNormaliser(choices))
    return _KINDS[name]()


def record_signal(signal: Any) -> dict[str, Any]:
    """Return the record of a signal as a JSON object; for the user's own signal, the name of its class.

    >>> record_signal(Votes(samples=3))
    {'signal': 'votes', 'samples': 3, 'temperature': 0.7}
    """
    if type(signal) is ReplyCheck:
        return {"signal": signal.name}
    name = next((name for name, kind in _KINDS.items() if type(signal) is kind), None)
    if name is None:
        return {"signal": type(signal).__name__}
    values = {field: getattr(signal, field) for field in getattr(type(signal), "__dataclass_fields__", {})}
    if name == "votes":
        values |= _record_comparison(values.pop("normalise"))
        values = {field: value for field, value in values.items() if value not in (None, False)}
    return {"signal": name} | {field: list(v) if isinstance(v, tuple) else v for field, v in values.items()}


def _record_comparison(normalise: Any) -> dict[str, Any]:
    if isinstance(normalise, ChoiceNormaliser):
        return {"choices": list(normalise.choices)}
    compare = getattr(normalise, "compare", None)
    if isinstance(compare, str):
        return {"compare": compare}
    return {} if normalise is normalise_answer else {"normalise": getattr(normalise, "__name__", "a function")}


def describe_difference(record: Mapping[str, Any], signal: Any) -> str | None:
    """Return the first entry in which a signal differs from a record, in words; None if no entry differs.

    >>> describe_difference({"signal": "choice", "top": 5}, Choice())
    'top is 20, not 5'
    """
    for name, value in record_signal(signal).items():
        if name in record and to_json_value(value) != to_json_value(record[name]):
            return f"{name} is {value!r}, not {record[name]!r}"
    return None


def signal_from_record(record: Mapping[str, Any]) -> Signal | None:
    """Build the signal that `record_signal` recorded; None if the signal runs the user's code.

    The user's own signals and some checks run code, and a file must not choose the code that a service runs.

    >>> signal_from_record({"signal": "choice", "choices": ["A", "B"], "top": 5})
    Choice(choices=('A', 'B'), top=5)
    """
    fields = {name: value for name, value in record.items() if name not in ("options", "others", "prices", "requests")}
    values = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in fields.items()}
    name = values.pop("signal", None)
    if isinstance(name, str) and is_reply_check(name):
        try:
            check = ReplyCheck(name)
        except ValueError:  # the file was edited by hand
            return None
        return None if check.runs_code else check
    if name not in SIGNAL_NAMES or "normalise" in values or (name == "choice" and "choices" not in values):
        return None
    if name == "votes" and "choices" in values:
        values["normalise"] = ChoiceNormaliser(values.pop("choices"))
    try:
        return _KINDS[str(name)](**values)
    except TypeError:  # the file was edited by hand
        return None
