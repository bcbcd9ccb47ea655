"""Several answers of a model to a query, and the votes that they come to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from rcjax.logs.answer_codes import UNKNOWN
from rcjax.logs.errors import listed

_ENOUGH = 0.5  # of a model's queries, with as many answers as are to vote

_CELL = ("model", "query")


def in_order(frame: pl.DataFrame, samples: Sequence[str]) -> pl.DataFrame:
    """The answers to each query in the order of their samples, whose names these are.

    By number where all samples of the log are whole numbers, else by first appearance.
    """
    whole = all(re.fullmatch(r"\d{1,18}", text) for text in samples)
    order = [int(text) for text in samples] if whole else range(len(samples))
    return frame.with_columns(order=pl.Series(np.array(order, np.int64)[frame["sample"]])).sort(*_CELL, "order")


def voted(frame: pl.DataFrame, models: int) -> tuple[pl.DataFrame, list[int]]:
    """(a row for each query and model, the vote of the first so many answers; how many of each model vote).

    Confidence is the share of the most common answer. Of equally common ones the one that came first counts, and of
    those who gave it what is known of the first one, but of `cost` the sum of all that vote and of `seconds` the
    longest, as all are asked for at once. An empty answer votes for nothing, but counts; where all are empty, the
    confidence is 0. One answer keeps its own confidence. A query that has fewer answers is left out.

    Args:
        frame: answers as `rcjax.logs.answers.Answers` has them, those to a query in order.
        models: how many there are.

    >>> answers = {"model": [0] * 6, "query": [0] * 3 + [1] * 3, "answer": [7, 7, 5] * 2, "cost": [1.0, 1.0, 2.0] * 2}
    >>> frame = pl.DataFrame(answers | {"logprob": [-0.1, -0.2, -0.4] * 2, "correct": [1.0, 1.0, 0.0] * 2})
    >>> vote, numbers = voted(frame, 1)
    >>> numbers, round(math.exp(vote["logprob"][0]), 4), vote["correct"][0], vote["cost"][0], vote["answer"][0]
    ([3], 0.6667, 1.0, 4.0, 7)
    """
    counts = frame.group_by(*_CELL).len()
    numbers = [_number(counts.filter(pl.col("model") == model)["len"].to_numpy()) for model in range(models)]
    frame = frame.with_columns(number=pl.Series(np.array(numbers, np.int64)[frame["model"]]))
    there, rank = pl.len().over(_CELL), pl.int_range(pl.len()).over(_CELL)
    voting = frame.filter(there >= pl.col("number"), rank < pl.col("number"))
    several = pl.col("number") > 1
    alike = pl.when(pl.col("answer") != UNKNOWN).then(pl.len().over(*_CELL, "answer")).otherwise(0)
    longest = [pl.col(name).nan_max().over(_CELL) for name in ("seconds",) if name in frame.columns]
    votes = voting.with_columns(pl.col("cost").sum().over(_CELL), *longest, alike=alike)
    votes = votes.filter(pl.col("alike").arg_max().over(_CELL) == rank)  # the first of the largest
    share = pl.when(several).then((pl.col("alike") / pl.col("number")).log()).otherwise("logprob")
    return votes.with_columns(logprob=share).drop("number", "alike"), numbers


def _number(answers: np.ndarray) -> int:
    """How many answers of a model vote: as many as enough queries have, of which each has so many answers.

    >>> _number(np.array([3, 2, 3, 1])), _number(np.array([5, 1, 1]))
    (3, 1)
    """
    answers = np.sort(answers)[::-1]
    enough = max(2, math.ceil(_ENOUGH * len(answers)))
    return int(answers[enough - 1]) if len(answers) >= enough else 1


def asked_to_vote(
    numbers: Mapping[str, int], compare: str, alone: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """How the models whose answers vote are asked, by name, as a policy keeps it.

    Args:
        numbers: how many answers of each model vote.
        compare: how answers are compared.
        alone: how single answers are asked for, by model; votes have their options and prices.
    """
    return {
        name: {
            **{key: value for key, value in alone.get(name, {}).items() if key in ("options", "prices")},
            **{"signal": "votes", "samples": number, "apart": True, "compare": compare},
        }
        for name, number in numbers.items()
        if number > 1
    }


def describe_votes(numbers: Mapping[str, int]) -> str | None:
    """What became of several answers, in words; None if no model has several."""
    several = listed(f"of {name} {number:,}" for name, number in numbers.items() if number > 1)
    said = f"several answers to a query ({several}): the confidence is the share that agree, the cost that of all"
    return said if several else None
