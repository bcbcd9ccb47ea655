"""Arrays: their type on the host and within compiled functions, their JSON values, and result codes in them."""

import math
from enum import IntEnum
from typing import Any, TypeAlias

import jax
import numpy as np

#: Array of numpy on the host, of jax within compiled functions.
Array: TypeAlias = np.ndarray | jax.Array


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
