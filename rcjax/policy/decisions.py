"""The calibrations, rules and comparisons of answers that a policy decides by, and their description in words.

A policy that compares answers records the form in which its log compares them (`Agreement.compare`), and a service
uses the same form. Standard library only.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from rcjax._base.codec import Record, Share, check_fields, fail, not_empty, read_value, require, require_keys
from rcjax._base.figures import format_threshold
from rcjax.policy.signals.answers import INVALID_MARK, canonical_json

Transform = Literal["choice", "generation", "none"]

#: Distance within which a raw probability counts as a stated value: models round what they state.
STATED_TOLERANCE = 5e-4

#: The raw log-probability that marks an answer without a confidence: exact in single precision.
NO_CONFIDENCE = -(2.0**100)

#: Least ratio of a calibrated confidence to the calibrated confidence of answers without a confidence.
MIN_RATIO = 1.001

_LOG_2 = math.log(2.0)


def _require_monotone(pairs: tuple[tuple[float, float], ...], place: str) -> tuple[tuple[float, float], ...]:
    """Require of pairs of a raw and a calibrated confidence that raw values rise, and calibrated ones rise or fall."""
    raw, calibrated = zip(*pairs, strict=True)
    require(all(a < b for a, b in pairwise(raw)), place, "must have its raw confidences in rising order", raw)
    monotone = list(calibrated) in (sorted(calibrated), sorted(calibrated, reverse=True))
    require(monotone, place, "must have calibrated confidences that rise, or that fall", calibrated)
    return pairs


@dataclass(frozen=True, slots=True)
class Calibration:
    """A map from a raw log-probability to a calibrated confidence, the estimated probability of being right.

    A logistic regression on a transformed probability (the paper's section on calibration):
    Φ = 1 / (1 + exp(−(intercept + slope · ξ))), where, with p = exp(logprob), ξ is

    - `"choice"`: log 1/(1−p);
    - `"generation"`: log 1/(1−p) − log 2 for p ≥ ½, and log p + log 2 for p < ½ (antisymmetric, monotone);
    - `"none"`: log p itself.

    `smallest` and `largest`, the extremes of the finite ξ of the training set, stand in for ξ = −∞ and +∞.

    Values that a model states often may have separate estimates: `stated` holds pairs (p, Φ), p rising. A probability
    within 0.0005 of a stated p gets its Φ; between two stated values Φ is clipped to their Φ. `no_confidence` is the Φ
    of an answer without a confidence (`NO_CONFIDENCE`), and every other Φ is larger; None: the Φ of p = 0.

    Raises ValueError for an unknown transform, a number that is not finite, smallest > largest, or unordered stated
    values.

    Example:
        >>> calibrate = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
        >>> print(f"{calibrate(-0.01):.4f} {calibrate(0.0):.4f}")
        0.7867 0.9820
        >>> calibrate = Calibration("choice", -1.0, 0.5, 0.0, 10.0, stated=((0.8, 0.4), (0.9, 0.7)))
        >>> print(f"{calibrate(math.log(0.9)):.4f} {calibrate(math.log(0.99)):.4f}")
        0.7000 0.7863
    """

    transform: Transform
    intercept: float
    slope: float
    smallest: float
    largest: float
    stated: Annotated[tuple[tuple[Share, Share], ...], not_empty, _require_monotone] | None = None
    no_confidence: Share | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stated", self.stated or None)
        check_fields(self)
        require(self.smallest <= self.largest, "smallest", "must be at most `largest`", self.smallest)

    def __call__(self, logprob: float) -> float:
        """Return the calibrated confidence in [0, 1] of a log-probability (NaN, above 0: ValueError)."""
        if not logprob <= 0:  # NaN is not
            raise ValueError(f"logprob must be at most 0, not {logprob}; clip rounding: min(logprob, 0.0)")
        if logprob == NO_CONFIDENCE:
            if self.no_confidence is not None:
                return self.no_confidence
            logprob = -math.inf
        curve = self._curve(float(logprob))
        amended = curve if self.stated is None else _amend(self.stated, math.exp(logprob), curve)
        return amended if self.no_confidence is None else max(amended, min(MIN_RATIO * self.no_confidence, 1.0))

    def _curve(self, logprob: float) -> float:
        xi = _transform(self.transform, logprob)
        if math.isinf(xi):
            xi = self.largest if xi > 0 else self.smallest
        return _logistic(self.intercept + self.slope * xi)


def _transform(transform: Transform, logprob: float) -> float:
    if transform == "none":
        return logprob
    if transform == "generation" and logprob < -_LOG_2:
        return logprob + _LOG_2
    wrong = -math.expm1(logprob)  # 1 − p, exact even where p has rounded to 1
    xi = -math.log(wrong) if wrong > 0 else math.inf
    return xi - _LOG_2 if transform == "generation" else xi


def _logistic(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    odds = math.exp(x)  # x < 0, so that this cannot overflow
    return odds / (1.0 + odds)


def _amend(stated: tuple[tuple[float, float], ...], raw: float, curve: float) -> float:
    """Return the estimate of a stated value; elsewhere the curve, clipped to the estimates of its neighbours."""
    index = bisect_left(stated, (raw,))
    neighbours = stated[max(index - 1, 0) : index + 1]
    distance, confidence = min((abs(value - raw), confidence) for value, confidence in neighbours)
    if distance <= STATED_TOLERANCE:
        return confidence
    rising = stated[0][1] <= stated[-1][1]
    before = stated[index - 1][1] if index > 0 else (0.0 if rising else 1.0)
    after = stated[index][1] if index < len(stated) else (1.0 if rising else 0.0)
    return min(max(curve, min(before, after)), max(before, after))


#: The form in which answers are compared.
AnswerForm = Literal["text", "choice", "key"]

#: All forms in which answers are compared.
ANSWER_FORMS: tuple[str, ...] = get_args(AnswerForm)

#: Texts, in lower case, that programs write for a reply without an answer. They never agree with another answer.
NO_ANSWERS = (
    *("[invalid]", "[invalidanswer]", "[invalid answer]", "[no answer]", "[noanswer]", "[none]", "[no_answer]"),
    *("n/a", "none", "null", "nan"),  # as programs write an empty cell
)

# A number with or without commas between thousands; not a part of a word, a date or a version.
_INTEGER = r"(\d{1,3}(?:,\d{3})+|\d+)"

_NUMBER = re.compile(rf"(?<![\w.,])([+-]?)(?:{_INTEGER}(?:\.(\d+))?|\.(\d+))(?!\w|[.,]\d)")
_NOUN = r"(?:answer|choice|option|letter)"

_LETTERS = (
    re.compile(r"\W*([a-z])\W*"),  # alone: "b", "(b)", "b."
    re.compile(rf"\W*(?:the\s+)?(?:\w+\s+)?{_NOUN}\W*(?:is\W*)?(?:{_NOUN}\W*)?([a-z])(?:\W.*)?"),  # "answer: b"
    re.compile(r"\W*([a-z])[).:\]](?:\W.*)?"),  # "b) jupiter"
)

_SHORT = 4096  # most characters of an answer whose canonical form is cached


def canonical_answer(answer: str | None, form: AnswerForm) -> str | None:
    """Return the canonical form of an answer for comparisons; None for no answer.

    JSON objects, JSON arrays and calls of tools have their canonical form (`rcjax.policy.signals.answers`). An answer
    that a `ReplyCheck` found invalid has none. Other answers are compared

    - `"text"`: without regard to case, white space, surrounding punctuation and the spelling of numbers.
    - `"choice"`: by the letter of the choice that the answer names; as a text if the answer names no choice.
    - `"key"`: as a text. A function extracted the answers from replies; a service needs that function.

    >>> [canonical_answer(answer, "text") for answer in (" The  Seine. ", "1,000", "1000.0", "$18", "-.50")]
    ['the seine', '1000', '1000', '18', '-0.5']
    >>> canonical_answer("  ", "text"), canonical_answer("[invalid]", "text")
    (None, None)
    >>> [canonical_answer(answer, "choice") for answer in ("B", "(b)", "B) Jupiter", "The answer is B.", "Jupiter")]
    ['b', 'b', 'b', 'b', 'jupiter']
    >>> canonical_answer('{"b": 5.0, "a": "007"}', "text"), canonical_answer("[invalid] [1]", "text")
    ('{"a":"007","b":5}', None)
    """
    if answer is None:
        return None
    return _cached_form(answer, form) if len(answer) <= _SHORT else _canonical_form(answer, form)


def _canonical_form(answer: str, form: AnswerForm) -> str | None:
    if answer.startswith(INVALID_MARK) or answer.strip().casefold() in ("", *NO_ANSWERS):
        return None
    document = canonical_json(answer)
    if document is not None:
        return document
    text = " ".join(unicodedata.normalize("NFKC", answer).replace("−", "-").casefold().split())
    bare = _without_punctuation(text)
    if form == "choice":
        match = next(filter(None, (letter.fullmatch(bare) for letter in _LETTERS)), None)
        if match:
            return match[1]
    return _NUMBER.sub(_plain_number, bare) or text


_cached_form = lru_cache(maxsize=4096)(_canonical_form)


def _without_punctuation(text: str) -> str:
    """Strip punctuation and symbols from both ends, but keep the sign and point of a number, and -x, √2, C++, A-."""
    start, end = 0, len(text)
    while end and _surrounds(text[end - 1]) and not _ends_name(text, end):
        end -= 1
    while start < end and _surrounds(text[start]) and not _BEGINS_VALUE.match(text, start):
        start += 1
    return text[start:end]


_BEGINS_VALUE = re.compile(r"[+-]?\.?\d|-?√|-[^\W\d_]\b")


def _ends_name(text: str, end: int) -> bool:
    """Return whether the last character of text[:end] belongs to the word before it, as in C++, C# or the grade A-."""
    last, word = text[end - 1], text[max(end - 3, 0) : end - 1]
    if last == "-":
        return bool(re.fullmatch(r"\W?[^\W\d_]", word))
    return last in "+#" and bool(re.search(r"\w[+#]?\Z", word))


def _surrounds(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSZ"


def _plain_number(match: re.Match[str]) -> str:
    """Spell a number in one way: 1,000.50 is 1000.5, and -0 is 0."""
    sign, integer, *parts = match.groups(default="")
    integer, part = integer.replace(",", "").lstrip("0") or "0", "".join(parts).rstrip("0")
    number = f"{integer}.{part}" if part else integer
    return f"-{number}" if sign == "-" and number != "0" else number


Action = Literal["answer", "ask", "abstain"]


@dataclass(frozen=True, slots=True)
class Rule:
    """The action for one interval of calibrated confidence.

    The interval is closed on the right: from just above the `up_to` of the previous rule (for the first rule,
    from 0) to this `up_to`, included. The action is to keep the `"answer"`, to `"ask"` the model `model`, or to
    `"abstain"`: give no answer, and ask no other model.
    Raises ValueError for an `up_to` outside [0, 1], an unknown action, or a model that does not go with the action.

    Example:
        >>> Rule(0.8, "ask", "large")
        Rule(up_to=0.8, action='ask', model='large')
    """

    up_to: Share
    action: Action
    model: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.action == "ask":
            read_value(str, self.model, "model")
        elif self.model is not None:
            fail("model", "is for the action 'ask' only", self.model)


def _require_whole_range(table: tuple[Rule, ...], place: str) -> tuple[Rule, ...]:
    ends = [rule.up_to for rule in table]
    require(all(low < high for low, high in pairwise(ends)), place, "must have its up_to in increasing order", ends)
    require(ends[-1] == 1.0, place, "must have 1 as its last up_to", ends)
    return table


#: The rules of a model, which cover the confidences from 0 to 1.
Table = Annotated[tuple[Rule, ...], not_empty, _require_whole_range]


def require_rules(rules: Mapping[str, tuple[Rule, ...]], place: str, models: Sequence[str]) -> Mapping[str, Any]:
    """Return the rules by model in the order of a cascade; ValueError for a rule that asks an earlier model."""
    for index, model in enumerate(models):
        later = tuple(models[index + 1 :])
        requirement = f"must be a later model, one of {later}" if later else "must not be: the last model has to answer"
        for i, rule in enumerate(rules.get(model, ())):
            require(rule.model in (None, *later), f"{place}[{model!r}][{i}].model", requirement, rule.model)
    return require_keys(rules, place, models)


def find_threshold(table: tuple[Rule, ...]) -> float | None:
    """Return the threshold φ of rules that ask one model up to φ and answer above φ; None for other rules."""
    asks = table[0].action == "ask"
    return table[0].up_to if asks and [rule.action for rule in table[1:]] in ([], ["answer"]) else None


@dataclass(frozen=True, slots=True)
class Agreement(Record):
    """The decision of a model by whether its answer equals that of an earlier model.

    If the two answers are equal, the answer is kept. If they differ, another model is asked. If one of them is not
    known, the model's rules by confidence decide.

    Args:
        earlier: name of the earlier model.
        model: name of the model to ask if the answers differ.
        compare: form of `canonical_answer` in which answers are compared: `"text"`, `"choice"` or `"key"`.

    Raises ValueError for an unknown comparison.

    Example:
        >>> agreement = Agreement("small", "large")
        >>> agreement.equal("1,000", "1000.0"), agreement.equal("Paris", "Lyon"), agreement.equal("Paris", None)
        (True, False, None)
    """

    earlier: str
    model: str
    compare: AnswerForm = "text"

    def equal(self, answer: str | None, earlier: str | None) -> bool | None:
        """Return whether two answers are equal; None if one of them is not known."""
        form, earlier_form = (canonical_answer(text, self.compare) for text in (answer, earlier))
        return None if form is None or earlier_form is None else form == earlier_form


def require_agreements(agreements: Mapping[str, Agreement], place: str, models: Sequence[str]) -> None:
    """Raise ValueError unless each agreement of a cascade is with an earlier model, and asks a later one."""
    for model, agreement in agreements.items():
        require(model in models, place, f"must be of models of the policy, {tuple(models)}", model)
        before, later = tuple(models[: models.index(model)]), tuple(models[models.index(model) + 1 :])
        named = (("earlier", agreement.earlier, before, "an earlier"), ("model", agreement.model, later, "a later"))
        for field, name, allowed, which in named:
            require(name in allowed, f"{place}[{model!r}].{field}", f"must be {which} model, one of {allowed}", name)


def describe_cascade(policy: Mapping[str, Any], width: int = 10**6, digits: int = 2) -> str:
    """Describe the JSON form of a policy, or of a point of a frontier, in lines of at most `width` if possible.

    Thresholds have `digits` decimals.

    >>> last = [{"up_to": 1, "action": "answer"}]
    >>> rules = {"a": [{"up_to": 0.62, "action": "ask", "model": "b"}, *last], "b": last}
    >>> describe_cascade({"models": ["a", "b"], "rules": rules})
    'a >0.62 → b'

    A model whose answer is kept if an earlier model gave the same:

    >>> rules = rules | {"b": [{"up_to": 0.4, "action": "ask", "model": "c"}, *last], "c": last}
    >>> agreements = {"b": {"earlier": "a", "model": "c"}}
    >>> describe_cascade({"models": ["a", "b", "c"], "rules": rules, "agreements": agreements})
    'a >0.62 → b, agree? → c'

    The threshold of abstention follows the name of the model:

    >>> abstaining = {"a": [{"up_to": 0.2, "action": "abstain"}, *last]}
    >>> describe_cascade({"models": ["a"], "rules": abstaining})
    'a (abstains ≤0.20)'
    """
    names, agreements, rules = _reached(policy), policy.get("agreements") or {}, policy["rules"]
    if is_chain(policy):
        return _wrap([_step(name, rules[name], agreements, digits) for name in names], " → ", width)
    return "\n".join(_describe_rules(name, rules[name], width, agreements.get(name), digits) for name in names)


def threshold_digits(policies: Iterable[Mapping[str, Any]]) -> int:
    """Return the fewest decimals of thresholds, 2 to 4, that tell the descriptions of policies apart; 2 if none do.

    >>> last = [{"up_to": 1, "action": "answer"}]
    >>> asks = ([{"up_to": cut, "action": "ask", "model": "b"}, *last] for cut in (0.898, 0.902))
    >>> threshold_digits([{"models": ["a", "b"], "rules": {"a": rules, "b": last}} for rules in asks])
    3
    """
    policies = [*policies]
    for digits in (2, 3, 4):
        if len({describe_cascade(policy, digits=digits) for policy in policies}) == len(policies):
            return digits
    return 2


def is_chain(policy: Mapping[str, Any]) -> bool:
    """Return whether a policy is a chain: each model may abstain, ask the next model and answer, in this order."""
    names = _reached(policy)
    for name, following in zip(names, [*names[1:], None], strict=True):
        acts = [(rule["action"], rule.get("model")) for rule in policy["rules"][name]]
        asks = [[("ask", following)], [("ask", following), ("answer", None)]]
        acts = acts[1:] if acts[0][0] == "abstain" else acts
        if acts not in (asks if following else [[("answer", None)]]):
            return False
    return True


def _reached(policy: Mapping[str, Any]) -> list[str]:
    """Return the models that the rules reach, in order; a rung of a ladder also names models of its segments."""
    reached, agreements = {*policy["models"][:1]}, policy.get("agreements") or {}
    for name in policy["models"]:
        if name in reached:
            reached |= {rule.get("model") for rule in policy["rules"][name]} | {agreements.get(name, {}).get("model")}
    return [name for name in policy["models"] if name in reached]


def _step(name: str, rules: Sequence[Mapping[str, Any]], agreements: Mapping[str, Any], digits: int) -> str:
    """Describe one model of a chain: the thresholds above which it answers, and up to which it abstains."""
    cut = next((rule["up_to"] for rule in rules if rule["action"] == "ask"), None)
    words = (
        name
        if cut is None or name in agreements or (agreements and cut >= 1)
        else f"{name} >{format_threshold(cut, digits)}"
    )
    if rules[0]["action"] == "abstain" and name not in agreements:
        words += f" (abstains ≤{format_threshold(rules[0]['up_to'], digits)})"
    return f"{words}, agree?" if name in agreements else words


def _describe_rules(
    name: str, rules: Sequence[Mapping[str, Any]], width: int, agreement: Mapping[str, Any] | None, digits: int
) -> str:
    if agreement is not None:
        return _wrap(
            [f"{name}: answer where {agreement['earlier']} agrees", f"else → {agreement['model']}"], ", ", width
        )
    ends = [f"≤{format_threshold(rule['up_to'], digits)} " for rule in rules[:-1]] + ["else " if len(rules) > 1 else ""]
    acts = [f"→ {rule['model']}" if rule["action"] == "ask" else rule["action"] for rule in rules]
    pieces = [end + act for end, act in zip(ends, acts, strict=True)]
    if pieces == ["answer"]:
        return name
    return _wrap([f"{name}: {pieces[0]}", *pieces[1:]], ", ", width)


def _wrap(pieces: Sequence[str], joint: str, width: int) -> str:
    """Join the pieces, breaking lines after a joint only."""
    lines = [pieces[0]]
    for i, piece in enumerate(pieces[1:], start=2):
        end = joint.rstrip() if i < len(pieces) else ""  # the separator, without its space, if a line break follows
        if len(lines[-1] + joint + piece + end) > width:
            lines[-1] += joint.rstrip()
            lines.append(f"  {piece}")
        else:
            lines[-1] += joint + piece
    return "\n".join(lines)
