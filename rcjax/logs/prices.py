"""Prices of tokens, by model, from a file or a mapping."""

from __future__ import annotations

import json
import os
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rcjax._base.json_checks import parsed
from rcjax.logs.checked_rows import LEAST, MOST, require_file
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, near

_LEAST = 1e6 * LEAST  # of a price per million tokens


def read_prices(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Read prices: (input, output) by model, in money per million tokens.

    `source` is the path of a TOML or JSON file, or a mapping, of the form
    `{model: {"input": price, "output": price}}`; a pair may stand for the inner mapping. A file may be UTF-8, or UTF-16
    or UTF-32 with a byte order mark.
    Raises `LogError` for a file that cannot be read and for prices that are not 0 or from 1e-12 to 1e18.

    >>> read_prices({"small": {"input": 0.1, "output": 0.4}})
    {'small': (0.1, 0.4)}
    """
    if isinstance(source, Mapping):
        name, content = "prices", source
    else:
        path = Path(source)
        name = path.name
        require_file(path, (".toml", ".json"))
        content = _parsed(path)
    if not isinstance(content, Mapping) or not content:
        raise LogError(f"{name}: no prices: give a table of input and output prices for each model")
    return {str(model): _price(entry, f"{name}, model {brief(model)}") for model, entry in content.items()}


def _parsed(path: Path) -> Any:
    """What a TOML or JSON file holds."""
    try:
        content = path.read_bytes()
        text = content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
        return tomllib.loads(text.replace("\r\n", "\n")) if path.suffix.lower() == ".toml" else parsed(text.encode())
    except (RecursionError, ValueError, OSError) as error:  # the parsers' own errors say in which line
        deep = isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)
        why = "lists or tables nested too deep" if deep else error
        raise LogError(f"{path.name}: cannot be read: {why}: correct the file") from None


def _price(entry: Any, where: str) -> tuple[float, float]:
    if isinstance(entry, Mapping):
        for key in ("input", "output"):
            if key not in entry:  # TOML reads the bare header [llama3.2-1b] as table 2-1b within llama3
                advice = "give input and output, and in TOML put a model's name with a dot in quotes"
                raise LogError(f"{where}: no {key} price{near(key, entry)}: {advice}")
        entry = (entry["input"], entry["output"])
    if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
        raise LogError(f"{where}: {_shown(entry)} is no price: give an input and an output price")
    for key, price in zip(("input", "output"), entry, strict=True):
        number = isinstance(price, int | float | np.integer | np.floating) and not isinstance(price, bool)
        if not number or not (price == 0 or _LEAST <= price <= MOST):
            limits = f"0, or from {_LEAST:g} to {MOST:g}"
            raise LogError(f"{where}: {key} price {_shown(price)}: give money per million tokens, {limits}")
    return float(entry[0]), float(entry[1])


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST:
        return f"of more than {MOST:g}" if value > 0 else f"of less than {-MOST:g}"  # may have more digits than fit
    return brief(reprlib.repr(value))
