"""Rows of a log with several answers per query and model, and the variants of each model that they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rcjax._base.variants import base_model, samples_of, variant_name
from rcjax._base.wording import count
from rcjax.logs.checked_rows import Rows
from rcjax.logs.columns import SAMPLE
from rcjax.logs.costs import Lost, mend
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed
from rcjax.logs.matrices import Matrices, numbered
from rcjax.logs.votes import VOTES, Samples, vote

__all__ = ["SampledRows", "checked_votes"]


_ENOUGH = 0.5  # of a model's queries, with as many answers as are to vote


_COLUMNS = ("logprob", "correct", "cost", "answer")


_PLACES = ("query", "model", "sample", "position", "order")


_ALONE = "or read one answer of each alone, by votes=1 (--votes 1)"


def checked_votes(votes: int | Iterable[int] | None) -> tuple[int, ...] | None:
    """How many answers are to vote, each number once, by size; None for as many as suit the log.

    Raises `LogError` for what is no such number.

    >>> checked_votes(3), checked_votes([5, 1, 5]), checked_votes(None)
    ((3,), (1, 5), None)
    """
    if votes is None:
        return None
    numbers = [votes] if isinstance(votes, int) else list(votes)
    if not numbers or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise LogError(f"votes {votes!r:.60}: give whole numbers, such as 1, 3 and 5")
    if not all(1 <= number <= 1000 for number in numbers):
        raise LogError(f"votes {listed(numbers)}: so many answers cannot vote: give numbers from 1 to 1,000")
    return tuple(sorted({*numbers}))


class SampledRows:
    """Gathers the rows of a log with a column sample; `variants` makes of them a model for each number of answers.

    Answers to a query come in the order of their samples: by number where all samples of the log are whole numbers,
    else by first appearance in the log.
    """

    def __init__(self, votes: tuple[int, ...] | None, named: Sequence[str] | None) -> None:
        self._votes, self._named = votes, named
        self._labels: dict[str, int] = {}
        self._parts: list[dict[str, np.ndarray]] = []
        self._last: Rows | None = None
        self._compared = False

    @property
    def any(self) -> bool:
        """Whether there was such a row."""
        return bool(self._parts)

    def add(
        self, rows: Rows, place: tuple[np.ndarray, np.ndarray], hashes: np.ndarray | None, **values: np.ndarray
    ) -> None:
        """Take some rows, with the `values` of their logprob, correct and cost, and what else is known of them.

        Args:
            rows: the rows.
            place: (query, model) of each, by number.
            hashes: of their answers; None where the log tells none.
        """
        texts = rows.frame[SAMPLE]
        rows.refuse(texts.is_null(), SAMPLE, "is missing: number the answers of a model to a query")
        told = hashes is not None
        if hashes is None:
            if self._needed() != {1}:
                what = "column sample, but no column answer (or answer_key) to tell which samples agree"
                raise LogError(f"{rows.name}: {what}: add it, {_ALONE}")
            hashes = np.zeros(len(texts), np.int64)
        sample = numbered(self._labels, texts)
        self._last = rows
        part = {"query": place[0], "model": place[1], "sample": sample, "position": rows.position, "answer": hashes}
        self._parts.append(part | values)
        self._compared |= told

    def mend_costs(self, models: Sequence[str]) -> Lost:
        """Leave costs that were lost out of the mean of each model (`rcjax.logs.costs`)."""
        costs, own = (np.concatenate([part[name] for part in self._parts]) for name in ("cost", "model"))
        lost: dict[str, tuple[int, int]] = {}
        for place, name in enumerate(models):
            cost = costs[own == place]
            lost[name] = mend(cost), len(cost)
            costs[own == place] = cost
        ends = np.cumsum([len(part["cost"]) for part in self._parts])[:-1]
        for part, values in zip(self._parts, np.split(costs, ends), strict=True):
            part["cost"] = values
        return lost

    def leave_out(self, otherwise: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Leave out the rows that `otherwise` tells by their models' numbers and their ways of being asked."""
        bad = otherwise(*(np.concatenate([part[name] for part in self._parts]) for name in ("model", "way")))
        starts = np.cumsum([len(part["model"]) for part in self._parts])[:-1]
        self._parts = [
            {name: values[~own] for name, values in part.items() if name != "way"}
            for part, own in zip(self._parts, np.split(bad, starts), strict=True)
        ]

    def _needed(self) -> set[int]:
        if self._named is not None:
            return {samples_of(name) for name in self._named}
        return {*(VOTES if self._votes is None else self._votes)}

    @staticmethod
    def check_names(rows: Rows) -> None:
        """Refuse samples of a model that is called as votes are. Raises `LogError`."""
        for model in rows.frame["model"].unique(maintain_order=True):
            if samples_of(model) > 1:
                what = f"{brief(model)} is the name of a vote, and has samples of its own"
                raise LogError(f"{rows.name}: model {what}: give it another name")

    def require_none(self, where: str) -> None:
        """Refuse votes that were asked for, of a log without the column. Raises `LogError`."""
        if self._votes is not None and max(self._votes) > 1:
            what = f"votes of {max(self._votes)}, but no column sample: it tells several answers to a query apart"
            raise LogError(f"{where}: {what}: add it, or leave out the votes")

    def asked(
        self, names: Iterable[str], compare: str, alone: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """How the votes among some models are asked for, by name, as a policy keeps it.

        Args:
            names: of the models, votes and others.
            compare: how answers are compared.
            alone: how single answers are asked for, by model; votes have their options and prices.
        """
        if not self.any:
            return {}
        votes = {name: samples_of(name) for name in names if samples_of(name) > 1}
        return {
            name: {
                **{
                    key: value for key, value in alone.get(base_model(name), {}).items() if key in ("options", "prices")
                },
                **{"signal": "votes", "samples": number, "apart": True, "compare": compare},
            }
            for name, number in votes.items()
        }

    def variants(self, held: Matrices) -> Matrices:
        """The matrices of the log, with a model for each variant, by what `held` knows of queries and models.

        Raises `LogError` where a sample is there twice, or no model has as many answers as are to vote.
        """
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        columns |= {"order": self._order()[columns["sample"]], "label_of": columns["sample"].astype(float)}
        order = np.lexsort((columns["order"], columns["query"], columns["model"]))
        columns = {name: values[order] for name, values in columns.items()}
        self._refuse_repeated(columns, list(held.models))
        samples = _in_order(columns, (len(held.queries), len(held.models)), max(self._needed()))
        numbers = self._numbers(samples.answered, list(held.models))
        votes = {
            variant_name(model, number): vote(_of_model(samples, place), number)
            for place, (model, several) in enumerate(zip(held.models, numbers, strict=True))
            for number in several
        }
        matrices = {
            name: np.stack([getattr(one, name) for one in votes.values()], 1)
            for name in (_COLUMNS if self._compared else _COLUMNS[:3])
        }
        matrices |= {name: np.stack([one.also[name] for one in votes.values()], 1) for name in samples.also}
        # A vote is right where the first sample is that gave its answer: that one is to be labelled.
        places = np.nan_to_num(matrices.pop("label_of"), nan=len(self._labels)).astype(int)
        matrices[SAMPLE] = np.array([*self._labels, ""])[places]
        answered = np.stack([one.answered for one in votes.values()], 1)
        models = {name: place for place, name in enumerate(votes)}
        return Matrices.whole(held.queries, models, row=np.where(answered, 0, -1), **matrices)

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
            what = f"sample {label} of the query is there already in {rows.place(first)}"
            raise LogError(f"{rows.name}, {rows.place(second)}, model {model}: {what}: number the samples")

    def _numbers(self, answered: np.ndarray, models: Sequence[str]) -> list[tuple[int, ...]]:
        """How many answers of each model vote: those asked for that some query has; else those that most have."""
        assert self._last is not None
        has = np.stack([(answered.sum(-1) > number).sum(0) for number in range(answered.shape[-1])])  # (S, k)
        if self._named is not None:
            return [self._named_numbers(model, own) for model, own in zip(models, has.T, strict=True)]
        if self._votes is None:
            return [tuple(n for n in VOTES if n == 1 or _is_enough(own, n)) for own in has.T]
        most = int((has > 0).any(1).sum())
        if max(self._votes) > most:
            what = f"votes of {max(self._votes)}: no model has so many answers to a query, but {most} at most"
            raise LogError(f"{self._last.name}: {what}: ask for fewer, or log more")
        several = [tuple(number for number in self._votes if own[number - 1]) for own in has.T]
        return [numbers or (1,) for numbers in several]

    def _named_numbers(self, model: str, has: np.ndarray) -> tuple[int, ...]:
        assert self._named is not None
        assert self._last is not None
        numbers = tuple(sorted(samples_of(name) for name in self._named if base_model(name) == model))
        for number in numbers:
            if number > len(has) or not has[number - 1]:
                most = count(int((has > 0).sum()), "answer")
                what = f"{brief(variant_name(model, number))} needs {number} answers to a query"
                raise LogError(f"{self._last.name}: model {what}, and the log has {most} at most: log more")
        return numbers


def _is_enough(has: np.ndarray, number: int) -> bool:
    """Whether enough queries have so many answers, of which there are has (S,) that have 1, 2, … or more."""
    return number <= len(has) and has[number - 1] >= max(2, _ENOUGH * has[0])


def _in_order(columns: dict[str, np.ndarray], shape: tuple[int, int], most: int) -> Samples:
    """The first so many samples of each query and model, from rows in order of model, query and sample."""
    cell = columns["model"] * shape[0] + columns["query"]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    rank = np.arange(len(cell)) - np.repeat(starts, np.diff(starts, append=len(cell)))
    size = min(most, int(rank.max()) + 1)
    chosen = rank < size
    places = columns["query"][chosen], columns["model"][chosen], rank[chosen]

    also = [name for name in columns if name not in (*_COLUMNS, *_PLACES)]

    def laid_out(values: np.ndarray, empty: Any) -> np.ndarray:
        whole = np.full((*shape, size), empty, values.dtype)
        whole[places] = values[chosen]
        return whole

    return Samples(
        logprob=laid_out(columns["logprob"], np.nan),
        correct=laid_out(columns["correct"], False),
        cost=laid_out(columns["cost"], 0.0),
        answer=laid_out(columns["answer"], 0),
        answered=laid_out(np.ones(len(cell), bool), False),
        also={name: laid_out(columns[name], False if columns[name].dtype == bool else np.nan) for name in also},
    )


def _of_model(samples: Samples, place: int) -> Samples:
    """The answers of one model, (n, S)."""
    also = {name: values[:, place] for name, values in samples.also.items()}
    return Samples(**{name: getattr(samples, name)[:, place] for name in (*_COLUMNS, "answered")}, also=also)
