"""Where a fitted model comes from, told in JSON values."""

import dataclasses
import datetime
import platform
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from rcjax._base.extras import version
from rcjax.logs.kept_sample import describe_reference
from rcjax.logs.log import Log
from rcjax.policy.counted import SAME_AS, SCORES


def describe_fit(log: Log) -> dict[str, Any]:
    """What a model was fitted on, when and with which versions; nothing of it tells where the log lies.

    `source` (the file's name without its folder, or the kind of dataframe), `digest` (SHA-256 of the log's
    content), `task`, `queries`, `complete_queries`, `answers` by model, `versions` of rcjax, jax and python,
    and `date` (UTC, ISO 8601, to the second); `asked`, each model's signal and options, where the log tells;
    `same_as`, the model whose answers take the place of right ones, where there is one (`Reference.to_json`); `scores`,
    their scale, where answers have scores (`Scores.to_json`); and
    `waiting`, where costs count it: its `second_cost`, and what an answer of each model costs without, `money`.
    """
    answers = np.asarray(log.answered).sum(axis=0).tolist()
    money = dict(zip(log.models, np.asarray(log.with_waiting().cost, float).tolist(), strict=True))
    optional = {
        "asked": log.asked,
        SAME_AS: log.reference and log.reference.to_json(),
        SCORES: log.scores and log.scores.to_json(),
        "waiting": {"second_cost": log.second_cost, "money": money} if log.second_cost else None,
    }
    return {
        "source": PurePath(log.source).name,
        "digest": log.digest,
        "task": log.task,
        "queries": log.n_queries,
        "complete_queries": int(log.complete.sum()),
        "answers": dict(zip(log.models, answers, strict=True)),
        "versions": {"rcjax": version(), "jax": jax.__version__, "python": platform.python_version()},
        "date": datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat(),
        **{name: value for name, value in optional.items() if value is not None},
    }


@dataclasses.dataclass(frozen=True)
class Details:
    """What a model keeps of its log and of its fit, as JSON values, which nobody may change.

    >>> details = Details(fit={"copula": "Gumbel"})
    >>> details.to_json(), details == Details.from_json(details.to_json())
    ({'fit': {'copula': 'Gumbel'}}, True)
    """

    provenance: Mapping[str, Any] | None = None
    """What was fitted on what (`describe_fit`); None, as all others, where that was not recorded."""
    reference: Mapping[str, Any] | None = None
    """Some queries of the log (`describe_reference`)."""
    fit: Mapping[str, Any] | None = None
    """Options of `fit`."""
    copulas: Sequence[Mapping[str, Any]] | None = None
    """Every family on every pair, where `fit` chose among several."""
    prices: Mapping[str, Mapping[str, float]] | None = None
    """Money per million input and output tokens, by model."""

    @classmethod
    def of_log(cls, log: Log, **more: Any) -> "Details":
        """Where a log comes from, some of its queries, its prices; `more` are other fields."""
        prices = None
        if log.prices is not None:
            prices = {name: price.record() for name, price in log.prices.items()}
        return cls(provenance=describe_fit(log), reference=describe_reference(log), prices=prices, **more)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Details":
        """The inverse of `to_json`."""
        return cls(**{field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data})

    def to_json(self) -> dict[str, Any]:
        """A JSON object with what was recorded."""
        return {name: value for name, value in vars(self).items() if value is not None}
