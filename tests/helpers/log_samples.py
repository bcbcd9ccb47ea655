"""A small log, in many forms, and what its tests ask of it."""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rcjax.logs import Log, LogError, read_log

PRICES = {"small": {"input": 0.1, "output": 0.4}, "large": {"input": 2.0, "output": 8.0}}
HEADER = "query,model,logprob,correct,cost"
ROWS = ("7,large,-0.5,1,0.003", "7,small,-inf,0,0.001", "3,large,0,1,0.005", "3,small,-2.5,true,0.002")


def table() -> pl.DataFrame:
    """Three queries, two models; the expensive model comes first."""
    return pl.DataFrame(
        {
            "query": [7, 7, 3, 3, 9, 9],
            "model": ["large", "small"] * 3,
            "logprob": [-0.5, -math.inf, 0.0, -2.5, -0.25, -1.0],
            "correct": [1, 0, 1, 1, 0, 1],
            "input_tokens": [100, 100, 200, 200, 300, 300],
            "output_tokens": [10, 20, 30, 40, 50, 60],
            "note": ["a, b", 'say "x"', "two\nlines", "", None, "ü"],
        }
    )


def costed() -> pl.DataFrame:
    return table().with_columns(cost=pl.Series([0.003, 0.001, 0.005, 0.002, 0.007, 0.003]))


def write(tmp_path: Path, *lines: str, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def refusal(source, **options) -> str:
    with pytest.raises(LogError) as caught:
        read_log(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


def assert_same(one: Log, other: Log) -> None:
    assert (one.models, one.queries, one.task, one.prices) == (
        other.models,
        other.queries,
        other.task,
        other.prices,
    )
    for field in ("logprob", "correct", "query_cost", "answered", "cost"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    assert one.digest == other.digest
