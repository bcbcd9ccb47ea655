"""Variants of a model: one answer of it, or the vote of several. Standard library only.

`small ×3` is the model `small` asked three times. What is known of the one holds of the other: where it is asked, and
at what price; and no cascade asks both, as it would pay for the same answers twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

__all__ = ["base_model", "is_variant_in", "of_model", "require_no_rivals", "rivals", "samples_of", "variant_name"]


_NAME = re.compile(r"(.+) ×([2-9]|[1-9]\d{1,3})", re.DOTALL)


Value = TypeVar("Value")


def variant_name(model: str, samples: int) -> str:
    """The name of a model of which so many answers vote; of one answer, its own.

    >>> variant_name("small", 3), variant_name("small", 1)
    ('small ×3', 'small')
    """
    return model if samples == 1 else f"{model} ×{samples}"


def base_model(name: str) -> str:
    """The model that a variant asks.

    >>> base_model("small ×3"), base_model("small")
    ('small', 'small')
    """
    match = _NAME.fullmatch(name)
    return match[1] if match else name


def samples_of(name: str) -> int:
    """How many answers of the model a variant takes.

    >>> samples_of("small ×3"), samples_of("small")
    (3, 1)
    """
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else 1


def of_model(values: Mapping[str, Value], name: str) -> Value | None:
    """What is told of a variant by its own name, or else by that of its model; None for nothing.

    >>> of_model({"small": 1, "large": 2}, "small ×3"), of_model({"small": 1, "small ×3": 3}, "small ×3")
    (1, 3)
    """
    return values[name] if name in values else values.get(base_model(name))


def is_variant_in(name: str, names: Iterable[str]) -> bool:
    """Whether a name is that of a vote of one of some models.

    >>> is_variant_in("small ×3", ["small", "large"]), is_variant_in("tiny ×3", ["small"])
    (True, False)
    """
    return samples_of(name) > 1 and base_model(name) in {*names}


def rivals(names: Sequence[str]) -> list[tuple[int, int]]:
    """The positions of the pairs of variants of one model, which never stand in one cascade.

    >>> rivals(["small", "large", "small ×3"])
    [(0, 2)]
    """
    models = [base_model(name) for name in names]
    return [(i, j) for j in range(len(names)) for i in range(j) if models[i] == models[j]]


def require_no_rivals(names: Sequence[str]) -> None:
    """Refuse a cascade that asks two variants of one model: ValueError."""
    for i, j in rivals(names):
        what = f"the cascade {' → '.join(names)} asks {base_model(names[i])} twice"
        raise ValueError(f"{what}: {names[i]} and {names[j]} are variants of one model: take one of them")
