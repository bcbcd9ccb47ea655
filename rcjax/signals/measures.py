"""Confidences from tokens, from samples and from words: pure functions."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from rcjax.signals.replies import SignalError, Token
from rcjax.signals.tokens import NO_LOGPROBS, log_sum

_WRAPPING = "▁Ġ \t\r\nĊ()[]{}<>*_`\"'.,:;“”‘’"  # what tokenizers and formats put around a letter


def choice_logprob(
    tokens: Sequence[Token] | None, choices: Iterable[str], given: str | None = None
) -> tuple[str, float]:
    """(the choice made, its log-probability) of an answer that begins with the name of one of several choices.

    The choice made is the one `given`, as the text tells it; by default that of the token that is there, and the
    likeliest only where this is none. At temperatures above 0 another one may be likelier. Its
    probability is the sum over the spellings of it among the likeliest tokens: "A", " A", "(A", "A.", "a", … . Tokens
    before it without a letter, such as "(" or "**", are passed through: what comes after them counts with their
    probability. It is not divided by the probability of all choices together: what a model puts on other tokens is
    doubt too, and next to 1 no digit is lost. Choices must be single tokens.
    Raises SignalError where there are no log-probabilities, none of a choice, or none of the one given.

    >>> first = Token("(", math.log(0.6), {"A": math.log(0.2), "B": math.log(0.2)})
    >>> second = Token("B", -0.1, {"B": math.log(0.75), " b": math.log(0.15), "A": math.log(0.1)})
    >>> choice, logprob = choice_logprob([first, second], "ABCD")
    >>> choice, round(math.exp(logprob), 3)
    ('B', 0.74)
    """
    return read_choice(tokens, list(choices), given)[:2]


def read_choice(
    tokens: Sequence[Token] | None, choices: Sequence[str], made: str | None = None
) -> tuple[str, float, str | None]:
    """What `choice_logprob` gives, and the likeliest choice where that is another."""
    spelled = _spelled_choices(tokens, choices)
    likeliest = max(spelled, key=spelled.__getitem__)
    choice = made or _spoken(tokens or (), choices) or likeliest
    if choice not in spelled:
        advice = "ask for the letter alone"
        raise SignalError(f"the choice made, {choice}, is not among the likeliest first tokens: {advice}")
    return choice, spelled[choice], None if likeliest == choice else likeliest


def verification_logprob(
    tokens: Sequence[Token] | None, yes: Sequence[str] = ("Y", "Yes"), no: Sequence[str] = ("N", "No")
) -> float:
    """The log-probability that a model says yes, asked whether an answer is right.

    All spellings of `yes` are summed as those of a choice are, and likewise not divided by yes and no together; −inf
    where only a no is among the likeliest tokens. Raises SignalError where there are no log-probabilities, or
    neither a yes nor a no among them.

    >>> verification_logprob([Token("Yes", -0.3, {"Yes": math.log(0.7), "y": math.log(0.1), "No": math.log(0.2)})])
    -0.223...
    """
    if not tokens:
        raise SignalError(NO_LOGPROBS)
    spelled = _spelled(tokens, [*yes, *no])
    if not spelled:
        raise SignalError(f"neither {yes[0]} nor {no[0]} is among the likeliest first tokens of the verification")
    return log_sum([spelled[word] for word in yes if word in spelled])


def mean_logprob(tokens: Sequence[Token] | None) -> float:
    """The mean log-probability of the tokens of a reply: the log of their geometric mean probability.

    >>> mean_logprob([Token("Par", -0.2), Token("is", -0.1)])
    -0.15...
    """
    if not tokens:
        raise SignalError(NO_LOGPROBS)
    try:
        return min(0.0, math.fsum(token.logprob for token in tokens) / len(tokens))
    except OverflowError:  # a probability that is 0 as a float
        return -math.inf


def vote_share(answers: Iterable[str | None], normalise: Callable[[str], str] | None = None) -> tuple[str, float]:
    """(the answer that most samples give, the share of samples that give it), compared as `normalise` leaves them.

    The default is `normalise_answer`. Of answers with equally many votes the first given wins, and it is returned as
    it was first written. Samples without an answer (None, or nothing left) vote for nothing, but count.
    Raises SignalError where no sample has an answer.

    >>> vote_share(["Paris", " paris", "Lyon", None])
    ('Paris', 0.5)
    """
    normalise = normalise or normalise_answer
    written: dict[str, str] = {}
    votes: dict[str, int] = {}
    total = 0
    for answer in answers:
        total += 1
        plain = normalise(answer or "")
        if plain:
            written.setdefault(plain, answer or "")
            votes[plain] = votes.get(plain, 0) + 1
    if not votes:
        raise SignalError("no sample has an answer: raise max_tokens, or look at the replies")
    winner = max(votes, key=votes.__getitem__)
    return written[winner], votes[winner] / total


def normalise_answer(text: str) -> str:
    """A text without regard to case and to the amount of white space, for comparing answers.

    >>> normalise_answer("  The Eiffel\\n Tower ")
    'the eiffel tower'
    """
    return " ".join(text.casefold().split())


_NUMBER = (  # not part of a range, a date or a longer number: its value, a sign of percentage, or of how many
    r"(?<![\w.,/–-])(\d+(?:\.\d+)?|\.\d+)"
    r"(?:\s*(%|percent\b|per cent\b)|\s*(?:/|out of)\s*(\d+(?:\.\d+)?))?(?!\w|/|\s*[–-]\s*\d|[.,]\d)"
)


_BETWEEN = r"\W*(?:(?:level|score|is|of|in|my|answer|this|about|around)\W*){0,4}"

_LABELLED = re.compile(r"confiden\w*" + _BETWEEN + _NUMBER, re.I)

_ANY = re.compile(_NUMBER, re.I)


def stated_confidence(text: str) -> float:
    """The probability in [0, 1] that a text states: "85%", "0.85", "Confidence: 85/100", "about 85 percent".

    A number that follows the word "confidence" overrides others; without that word it must be the only one that is
    a percentage or a ratio, or be the whole text. A bare number is a probability and needs a decimal point: "1" or
    "85" could be on any scale. Raises SignalError where nothing is stated, or it is ambiguous or out of range.

    >>> stated_confidence("The answer is 42. Confidence: 85/100"), stated_confidence("0.9")
    (0.85, 0.9)
    """
    text = unicodedata.normalize("NFKC", text).strip(" \t\r\n*~≈")
    statements = [_stated(*match.groups()) for match in _LABELLED.finditer(text)]
    if not statements:
        whole = _ANY.fullmatch(text.rstrip("."))
        marked = [match for match in _ANY.finditer(text) if match[2] or match[3]]
        statements = [_stated(*match.groups()) for match in ([whole] if whole else marked)]
    values = sorted({*statements})
    if len(values) == 1:
        return values[0]
    advice = 'ask for "Confidence: NN%" alone'
    if not values:
        raise SignalError(f"the text states no confidence: {advice}")
    raise SignalError(f"the text states more than one confidence ({', '.join(f'{v:g}' for v in values)}): {advice}")


def _stated(number: str, percent: str | None, whole: str | None) -> float:
    scale = 100.0 if percent else float(whole) if whole else 1.0
    if not percent and not whole and "." not in number and number != "0":
        raise SignalError(f'the confidence {number} could be on any scale: ask for "{number}%" or "0.…"')
    if not 0 < scale < math.inf or float(number) > scale:
        raise SignalError(f"the confidence {number}{percent or ''}{f'/{whole}' if whole else ''} is above 1")
    return float(number) / scale


def _spelled(tokens: Sequence[Token], words: Iterable[str]) -> dict[str, float]:
    """The log-probability of each of the words that is found, over its spellings, at the beginning of the tokens."""
    names = {_bare(word): word for word in words}
    logprobs: dict[str, list[float]] = {}
    path = 0.0  # log-probability of the tokens passed through
    for token in tokens:
        for text, logprob in {token.text: token.logprob, **token.top}.items():
            if _bare(text) in names:
                logprobs.setdefault(names[_bare(text)], []).append(path + logprob)
        if _bare(token.text):
            break
        path += token.logprob
    return {word: log_sum(values) for word, values in logprobs.items()}


def _spelled_choices(tokens: Sequence[Token] | None, choices: Sequence[str]) -> dict[str, float]:
    """The log-probability of each choice that there is. Raises SignalError where there is none."""
    if not tokens:
        raise SignalError(NO_LOGPROBS)
    spelled = _spelled(tokens, choices)
    if not spelled:
        names = ", ".join(choices)
        raise SignalError(f"no choice of {names} is among the likeliest first tokens: ask for the letter alone")
    return spelled


def _spoken(tokens: Sequence[Token], choices: Sequence[str]) -> str | None:
    """The choice that the first token with a letter is; None if that is another word."""
    first = next((bare for token in tokens if (bare := _bare(token.text))), None)
    return next((choice for choice in choices if _bare(choice) == first), None)


def _bare(text: str) -> str:
    return text.strip(_WRAPPING).casefold()
