"""Values as JSON has them, which knows neither arrays nor infinities."""

import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Arrays to lists, numbers that are not finite (a standard error that does not exist) to None, inside out.

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
