"""Arrays as JSON values, which has neither arrays nor infinities; and result codes with messages."""

import dataclasses
import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def plain(value: Any) -> Any:
    """Convert arrays to lists, and numbers that are not finite (an undefined standard error) to None, recursively.

    >>> plain({"error": np.array([0.5, np.nan]), "models": ("small", "large")})
    {'error': [0.5, None], 'models': ['small', 'large']}
    """
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def arrays_to_json(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as nested lists; infinities (an undefined standard error) become None."""
    data = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "transform"}
    return {name: plain(value) for name, value in data.items()}


def arrays_from_json(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by field: the inverse of `arrays_to_json`."""

    def array(name: str, value: tuple[float, ...] | list[list[float] | float]) -> jax.Array:
        values = np.array(value, dtype=float)
        return jnp.asarray(np.where(np.isnan(values), np.inf, values), int if name == "status" else None)

    return {name: array(name, value) for name, value in part.items()}


class Status(IntEnum):
    """A result code with its meaning: subclasses list their members as `NAME = code, "meaning"`.

    A member is an integer, so that arrays and jitted functions can hold it.

    >>> class Weather(Status):
    ...     FAIR = 0, "not a cloud"
    >>> Weather(0).message, Weather.FAIR + 1
    ('not a cloud', 1)
    """

    message: str

    def __new__(cls, code: int, message: str) -> "Status":
        """Make a member of its code and message."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        return member
