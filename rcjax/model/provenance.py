"""Where a fitted model comes from, told in JSON values."""

import datetime
import json
import platform
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from rcjax._base.version import version
from rcjax.logs.kept_sample import describe_reference
from rcjax.logs.log import Log


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


def details_of(log: Log, **more: Any) -> str:
    """What a model keeps of its log, as JSON: where it comes from, some queries, its prices."""
    from rcjax.model.provenance import describe_fit

    details = {"provenance": describe_fit(log), "reference": describe_reference(log), **more}
    if log.prices is not None:
        details["prices"] = {name: {"input": i, "output": o} for name, (i, o) in log.prices.items()}
    return json.dumps(details)
