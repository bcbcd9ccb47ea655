"""Rows of a log with several answers per query and model, and the votes that they come to."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import SAMPLE
from rcjax.logs.costs import Lost, mend
from rcjax.logs.errors import LogError, brief, listed
from rcjax.logs.matrices import Matrices, numbered

_ENOUGH = 0.5  # of a model's queries, with as many answers as are to vote


_COLUMNS = ("logprob", "correct", "cost", "answer")


_KEYS = ("query", "model", "sample", "position", "order")


@dataclasses.dataclass(frozen=True)
class Samples:
    """Answers of models to queries, S of each at most, in order; arrays of shape (…, S), those that are there first.

    What they come to by `vote` has arrays of shape (…), which tell nothing where there are too few.
    """

    logprob: np.ndarray
    """Natural log of the confidence of each answer, its raw one, or its share; NaN where there is none."""
    correct: np.ndarray
    """bool: the answer is right, or its score; of several, as the first that gave that of most is."""
    cost: np.ndarray
    """Money; of several, the sum of theirs."""
    answer: np.ndarray
    """Whole numbers: equal ones are equal answers, 0 is none."""
    answered: np.ndarray
    """bool: there is such an answer, or there are enough."""
    also: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """What else is known of each answer, by name; of several, that of the first that gave that of most, but of
    `seconds` the longest of those that vote, NaN where one is not known. NaN or False where there is none."""


def vote(samples: Samples, number: int) -> Samples:
    """The vote of the first so many answers; one answer keeps its own confidence.

    Confidence is the share of the most common answer. Of equally common ones the one that came first counts. An empty
    answer votes for nothing, but counts; where all are empty, the confidence is 0.

    Args:
        samples: the answers.
        number: how many of them vote, from 1 to S.

    >>> right, there, money = np.array([True, True, False]), np.ones(3, bool), np.array([1.0, 1.0, 2.0])
    >>> answers = Samples(np.log([0.9, 0.8, 0.7]), right, money, np.array([7, 7, 5]), there)
    >>> three = vote(answers, 3)
    >>> round(float(np.exp(three.logprob)), 4), bool(three.correct), float(three.cost), int(three.answer)
    (0.6667, True, 4.0, 7)
    """
    answered = samples.answered.sum(-1) >= number
    logprob, correct, cost, answer = (
        values[..., :number] for values in (samples.logprob, samples.correct, samples.cost, samples.answer)
    )
    alike = ((answer[..., :, None] == answer[..., None, :]) & (answer[..., None] != 0)).sum(-1)
    first = alike.argmax(-1)[..., None]  # the first of the largest
    if number > 1:
        with np.errstate(divide="ignore"):
            logprob = np.log(alike / number)
    of_first = [np.take_along_axis(values, first, -1)[..., 0] for values in (logprob, correct, answer)]
    also = {
        name: values[..., :number].max(-1)  # as all are asked for at once
        if name == "seconds"
        else np.take_along_axis(values, first, -1)[..., 0]
        for name, values in samples.also.items()
    }
    return Samples(
        logprob=np.where(answered, of_first[0], np.nan),
        correct=np.where(answered, of_first[1], of_first[1].dtype.type(0)),
        cost=np.where(answered, cost.sum(-1), 0.0),
        answer=np.where(answered, of_first[2], 0),
        answered=answered,
        also={name: np.where(answered, values, _empty_like(values, answered)) for name, values in also.items()},
    )


def _empty_like(values: np.ndarray, answered: np.ndarray) -> np.ndarray:
    """What stands where there is no vote: False of bool values, NaN of numbers."""
    return np.full(answered.shape, False if values.dtype == bool else np.nan)


class SampledRows:
    """Gathers the rows of a log with a column sample; `voted` makes one answer of several of a model to a query.

    Answers to a query come in the order of their samples: by number where all samples of the log are whole numbers,
    else by first appearance in the log.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """How many answers of each model vote, once that is known."""
        self._labels: dict[str, int] = {}
        self._parts: list[dict[str, np.ndarray]] = []
        self._last: Rows | None = None

    @property
    def any(self) -> bool:
        """Whether there was such a row."""
        return bool(self._parts)

    def add(
        self, rows: Rows, cells: tuple[np.ndarray, np.ndarray], hashes: np.ndarray | None, **values: np.ndarray
    ) -> None:
        """Take some rows, with the `values` of their logprob, correct and cost, and what else is known of them.

        Args:
            rows: the rows.
            cells: (query, model) of each, by number.
            hashes: of their answers; None where the log tells none.
        """
        texts = rows.frame[SAMPLE]
        rows.refuse(texts.is_null(), SAMPLE, "is missing: number the answers of a model to a query")
        if hashes is None:
            what = "column sample, but no column answer (or answer_key) to tell which samples agree"
            raise LogError(f"{rows.name}: {what}: add it, or keep one row per query and model")
        sample = numbered(self._labels, texts)
        self._last = rows
        part = {"query": cells[0], "model": cells[1], "sample": sample, "position": rows.position, "answer": hashes}
        self._parts.append(part | values)

    def mend_costs(self, models: Sequence[str]) -> Lost:
        """Leave costs that were lost out of the mean of each model (`rcjax.logs.costs`)."""
        costs, model = (np.concatenate([part[name] for part in self._parts]) for name in ("cost", "model"))
        lost: dict[str, tuple[int, int]] = {}
        for number, name in enumerate(models):
            cost = costs[model == number]
            lost[name] = mend(cost), len(cost)
            costs[model == number] = cost
        ends = np.cumsum([len(part["cost"]) for part in self._parts])[:-1]
        for part, values in zip(self._parts, np.split(costs, ends), strict=True):
            part["cost"] = values
        return lost

    def models_and_ways(self) -> tuple[np.ndarray, np.ndarray]:
        """(model, way of being asked) of each row that was taken, (N,), by number."""
        models, ways = (np.concatenate([part[name] for part in self._parts]) for name in ("model", "way"))
        return models, ways

    def leave_out(self, bad: np.ndarray) -> None:
        """Leave out some (N,) of the rows that were taken; from then on nobody asks for their ways."""
        starts = np.cumsum([len(part["model"]) for part in self._parts])[:-1]
        self._parts = [
            {name: values[~left_out] for name, values in part.items() if name != "way"}
            for part, left_out in zip(self._parts, np.split(bad, starts), strict=True)
        ]

    def asked(self, compare: str, alone: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """How the models whose answers vote are asked, by name, as a policy keeps it.

        Args:
            compare: how answers are compared.
            alone: how single answers are asked for, by model; votes have their options and prices.
        """
        return {
            name: {
                **{key: value for key, value in alone.get(name, {}).items() if key in ("options", "prices")},
                **{"signal": "votes", "samples": number, "apart": True, "compare": compare},
            }
            for name, number in self.numbers.items()
            if number > 1
        }

    def describe(self) -> str | None:
        """What became of several answers, in words; None where no model has several."""
        several = {name: number for name, number in self.numbers.items() if number > 1}
        if not several:
            return None
        numbers = listed([f"of {name} {number:,}" for name, number in several.items()])
        return f"several answers to a query ({numbers}): the confidence is the share that agree, the cost that of all"

    def voted(self, held: Matrices) -> Matrices:
        """The matrices of the log, of votes where a model has several answers, by what `held` knows of its queries.

        Raises `LogError` where a sample is there twice.
        """
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        columns |= {"order": self._order()[columns["sample"]], "label_of": columns["sample"].astype(float)}
        order = np.lexsort((columns["order"], columns["query"], columns["model"]))
        columns = {name: values[order] for name, values in columns.items()}
        self._refuse_repeated(columns, list(held.models))
        n, k = len(held.queries), len(held.models)
        counts = np.bincount(columns["model"] * n + columns["query"], minlength=n * k).reshape(k, n)
        self.numbers = {model: _number(answers) for model, answers in zip(held.models, counts, strict=True)}
        samples = _in_order(columns, (n, k), max(self.numbers.values()))
        votes = [vote(_of_model(samples, column), number) for column, number in enumerate(self.numbers.values())]
        matrices = {name: np.stack([getattr(one, name) for one in votes], 1) for name in _COLUMNS}
        matrices |= {name: np.stack([one.also[name] for one in votes], 1) for name in samples.also}
        # A vote is right where the first sample is that gave its answer: that one is to be labelled.
        label = np.nan_to_num(matrices.pop("label_of"), nan=len(self._labels)).astype(int)
        matrices[SAMPLE] = np.array([*self._labels, ""])[label]
        answered = np.stack([one.answered for one in votes], 1)
        return Matrices.whole(held.queries, held.models, row=np.where(answered, 0, -1), **matrices)

    def _order(self) -> np.ndarray:
        """(labels,) the rank of each sample."""
        texts = list(self._labels)
        if all(re.fullmatch(r"\d{1,18}", text) for text in texts):
            return np.array([int(text) for text in texts])
        return np.arange(len(texts))

    def _refuse_repeated(self, columns: dict[str, np.ndarray], models: Sequence[str]) -> None:
        """Refuse a sample of a query and model that is there twice; rows are in order of model, query and sample."""
        rows = self._last
        assert rows is not None
        keys = np.stack([columns[name] for name in ("model", "query", "order")])
        same = (keys[:, 1:] == keys[:, :-1]).all(0)
        if same.any():
            pairs = np.stack([columns["position"][:-1][same], columns["position"][1:][same]])
            where = int(pairs.max(0).argmin())
            first, second = sorted(pairs[:, where].tolist())
            at = int(np.flatnonzero(same)[where])
            label = brief(list(self._labels)[columns["sample"][at + 1]])
            model = brief(models[columns["model"][at]])
            what = f"sample {label} of the query is there already in {rows.row_in_words(first)}"
            raise LogError(f"{rows.name}, {rows.row_in_words(second)}, model {model}: {what}: number the samples")


def _number(answers: np.ndarray) -> int:
    """How many answers of a model vote: as many as enough queries have, of which each has so many answers (n,).

    >>> _number(np.array([3, 2, 3, 0, 1])), _number(np.array([5, 1, 1]))
    (3, 1)
    """
    answers = np.sort(answers[answers > 0])[::-1]
    enough = max(2, math.ceil(_ENOUGH * len(answers)))
    return int(answers[enough - 1]) if len(answers) >= enough else 1


def _in_order(columns: dict[str, np.ndarray], shape: tuple[int, int], size: int) -> Samples:
    """The first so many samples of each query and model, from rows in order of model, query and sample."""
    cell = columns["model"] * shape[0] + columns["query"]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    rank = np.arange(len(cell)) - np.repeat(starts, np.diff(starts, append=len(cell)))
    first = rank < size
    index = columns["query"][first], columns["model"][first], rank[first]
    also = [name for name in columns if name not in (*_COLUMNS, *_KEYS)]

    def laid_out(values: np.ndarray, empty: float) -> np.ndarray:
        whole = np.full((*shape, size), empty, values.dtype)
        whole[index] = values[first]
        return whole

    return Samples(
        logprob=laid_out(columns["logprob"], np.nan),
        correct=laid_out(columns["correct"], False),
        cost=laid_out(columns["cost"], 0.0),
        answer=laid_out(columns["answer"], 0),
        answered=laid_out(np.ones(len(cell), bool), False),
        also={name: laid_out(columns[name], False if columns[name].dtype == bool else np.nan) for name in also},
    )


def _of_model(samples: Samples, column: int) -> Samples:
    """The answers of one model, (n, S)."""
    also = {name: values[:, column] for name, values in samples.also.items()}
    return Samples(**{name: getattr(samples, name)[:, column] for name in (*_COLUMNS, "answered")}, also=also)
