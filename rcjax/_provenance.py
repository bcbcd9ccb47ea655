"""Where a fitted model comes from, told in JSON values."""

import datetime
import platform
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rcjax._json import plain
from rcjax._version import version
from rcjax.logs import Log

if TYPE_CHECKING:
    from rcjax.frontier import Frontier


def describe_fit(log: Log) -> dict[str, Any]:
    """What a model was fitted on, when and with which versions; nothing of it tells where the log lies.

    `source` (the file's name without its folder, or the kind of dataframe), `digest` (SHA-256 of the log's
    content), `task`, `queries`, `complete_queries`, `answers` by model, `versions` of rcjax, jax and python,
    and `date` (UTC, ISO 8601, to the second).
    """
    answers = np.asarray(log.answered).sum(axis=0).tolist()
    return {
        "source": PurePath(log.source).name,
        "digest": log.digest,
        "task": log.task,
        "queries": log.n_queries,
        "complete_queries": int(log.complete.sum()),
        "answers": dict(zip(log.models, answers, strict=True)),
        "versions": {"rcjax": version(), "jax": jax.__version__, "python": platform.python_version()},
        "date": datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat(),
    }


def describe_tuning(frontier: "Frontier", target: Mapping[str, float] | None) -> dict[str, Any]:
    """Where a policy of a frontier comes from, and all that it takes to check it and to tune it again.

    What its model says of the log (`describe_fit`); `tuning`: the `target`, where there was one, the `models` to choose
    from and their `prices`, the `search`, `chain`, `bands` and `abstain_price` of the frontier, and the options of the
    `fit`; and `reference`: queries of that log.
    """
    model = frontier.model
    tuning = {
        "target": dict(target or {}),
        "models": list(model.models),
        "prices": model.prices,
        "search": plain(frontier.search),
        "chain": frontier.chain,
        "bands": frontier.bands is not None,
        "abstain_price": frontier.abstain_price,
        "fit": model.options,
    }
    told = {**model.provenance, "tuning": tuning}
    return told if model.reference is None else told | {"reference": model.reference}
