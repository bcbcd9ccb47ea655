"""Parse the values of options: money, shares, numbers, names; a usage error for an invalid value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rcjax.policy.ladder import Period, Queries
    from rcjax.policy.policy import AnyPolicy
    from rcjax.policy.spec import SecondsLimit
    from rcjax.serving.shadowing import ShadowRate

_KINDS = ("all", "full", "adaptive")

_MOST, _LEAST = 1e30, 1e-30  # range of money and λ: beyond any currency, and products of three are finite

_PER = {"": 1.0, "query": 1.0, "k": 1e-3, "m": 1e-6}

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "K": 10**3, "M": 10**6, "G": 10**9}


def _number(number: str, text: str, what: str) -> float:
    """Parse a finite number, at least 0; the usage error says that the whole text is no `what`."""
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"{text!r} is no {what}")
    return value


def _bounded(value: float, text: str) -> float:
    """Return a sum of money, or λ; a usage error beyond the range of computation."""
    if value != 0 and not _LEAST <= value <= _MOST:
        raise typer.BadParameter(f"{text!r} is not from {_LEAST:g} to {_MOST:g}, where sums of money must lie, and λ")
    return value


def money(text: str) -> float:
    """Parse money per query: `0.00015`, `150/M` (per million queries) or `0.15/k` (per thousand)."""
    amount, _, unit = text.strip().removeprefix("$").partition("/")
    number = amount if unit.strip().lower() in _PER else "nan"
    value = _number(number, text, "sum of money: give 0.00015, 0.15/k or 150/M")
    return _bounded(_PER.get(unit.strip().lower(), 1.0) * value, text)


def budget(text: str) -> float | Period:
    """Parse money per query, as `money` does, or for a period of the calendar: `500/month`, a `Period`."""
    from rcjax.policy.ladder import PERIODS, Period

    amount, _, unit = text.strip().lower().partition("/")
    return Period(positive(amount), unit.strip()) if unit.strip() in PERIODS else money(text)


def queries(text: str) -> Queries:
    """Parse a number of queries in a period, `200000/month`, as `Queries`."""
    from rcjax.policy.ladder import PERIODS, Queries

    amount, _, unit = text.strip().lower().partition("/")
    if unit.strip() not in PERIODS:
        raise typer.BadParameter(f"{text!r}: give queries and a period, such as 200000/month, or /week or /day")
    return Queries(positive(amount), unit.strip())


def fraction(text: str) -> float:
    """Parse an error probability: `0.05` or `5%`."""
    number = text.strip()
    value = _number(number.removesuffix("%"), text, "share such as 0.05 or 5%") / (100 if number.endswith("%") else 1)
    if value > 1:
        raise typer.BadParameter(f"{text!r} is more than 1: give a share such as 0.05, or 5%")
    return value


def margin(text: str) -> float:
    """Parse a margin of error: `0.01` or `1%` for one point."""
    if text.strip() in ("1", "1.0"):
        raise typer.BadParameter(f"{text!r} would be 100 points: give 1% for one point, or 100%")
    return fraction(text)


def part(text: str) -> float:
    """Parse a share: `1/5`, `0.2` or `20%`."""
    number, slash, of = text.partition("/")
    value = positive(number) / positive(of) if slash else fraction(text)
    if not 0 < value <= 1:
        raise typer.BadParameter(f"{text!r}: give a share above 0 and at most 1, such as 1/5")
    return value


def shadow(text: str) -> float | ShadowRate:
    """Parse a share, `5%`, or a number of queries in a period, `200/week`."""
    if "/" not in text:
        return fraction(text)
    from rcjax.serving.shadowing import ShadowRate

    try:
        return ShadowRate.of(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def positive(text: str) -> float:
    """Parse a number above 0."""
    value = _number(text.strip().removeprefix("$"), text, "number above 0")
    if value == 0:
        raise typer.BadParameter(f"{text!r} is not above 0")
    return _bounded(value, text)


def size(text: str) -> int:
    """Parse a number of bytes: `500KB`, `100MB` or `1GB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?B?)", text.strip().upper())
    if match is None or float(match[1]) * _BYTES[match[2]] < 1:
        raise typer.BadParameter(f"{text!r} is no size: give 500KB, 100MB or 1GB")
    return int(float(match[1]) * _BYTES[match[2]])


def seconds_limit(text: str) -> SecondsLimit:
    """Parse a limit on the seconds of a query: `2`, on average, or `p95=4`."""
    from rcjax.policy.spec import SecondsLimit

    try:
        return SecondsLimit.of(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem).removeprefix("max_seconds").lstrip(": ")) from None


def today(text: str) -> AnyPolicy | str:
    """Parse today's model or policy: the name of a model, or the file of a policy, which is read."""
    if not (text.endswith(".json") or os.path.isfile(text)):
        return text
    from rcjax.policy.ladder import load_policy

    try:
        return load_policy(text)
    except OSError as problem:
        raise typer.BadParameter(f"{text}: {problem.strerror}") from None
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def names(text: str) -> tuple[str, ...]:
    """Parse names of models, with commas between them."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(names) > len({*names}):
        raise typer.BadParameter(f"{text!r}: give names of models, each once, with commas between them")
    return names


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse pairs such as `old=new`, each of another name; a usage error for any other text.

    >>> pairs(["correct=is_right", "model=engine"], "--column")
    {'correct': 'is_right', 'model': 'engine'}
    """
    named: dict[str, str] = {}
    for text in texts or ():
        left, _, right = (part.strip() for part in text.partition("="))
        if not (left and right) or left in named:
            raise typer.BadParameter(f"{text!r}: give pairs of two names, NAME=NAME, each once", param_hint=option)
        named[left] = right
    return named


def cascade(text: str) -> str | tuple[tuple[str, ...]]:
    """Parse a search by the model, for `Spec.cascade`: a word, or the names of the models of one cascade.

    >>> cascade("full"), cascade("small,large")
    ('full', (('small', 'large'),))
    """
    return text if text in _KINDS else (names(text),)


def models_to_read(models: tuple[str, ...] | None, cascade: Any) -> tuple[str, ...] | None:
    """Return the models of `--models`, or those of one `--cascade`, in the order given rather than by cost.

    >>> models_to_read(None, (("large", "small"),)), models_to_read(None, "full")
    (('large', 'small'), None)
    """
    return models or (cascade[0] if isinstance(cascade, tuple) else None)
