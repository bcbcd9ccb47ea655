"""What is learnt of each model of a log by itself: its calibrated confidence and its cost. Every search starts here.

The search by the labels needs no more; `CascadeModel` adds how the confidences depend on each other.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.checks import SCHEMA_VERSION
from rcjax._base.files import write_atomically
from rcjax._core.batching import fill_up, map_entries
from rcjax._core.compilation import compiled, is_traced
from rcjax.logs.errors import LogError, spelt_otherwise
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, calibrate_rows, fit_calibrator
from rcjax.model.label_outcomes import expected_log
from rcjax.model.model_file import FORMAT, margin_to_json
from rcjax.model.pairs import pairs
from rcjax.model.provenance import Details
from rcjax.model.stated import stated_logprobs


def positions(models: tuple[str, ...], names: Sequence[str]) -> tuple[int, ...]:
    """Where the names are among the models; ValueError for one that is not."""
    unknown = [name for name in names if name not in models]
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}; the models are {', '.join(models)}")
    return tuple(models.index(name) for name in names)


class Fitted:
    """What was learnt from a log of k models, whichever more of it there is."""

    calibrators: Calibrator
    cost: jax.Array
    models: tuple[str, ...]
    details: Details

    def calibrate(self, logprob: jax.Array | Log) -> jax.Array:
        """(…, k) calibrated confidences of raw log-probabilities, in the order of this model's `models`.

        Of a log, whose columns are found by their names: (n, k), NaN if a model did not answer. A bare array (…, k)
        has no names: its last axis must be in the order of `models`, which is that of the log fitted to, and need not
        be that of another log. Raises LogError, a ValueError, for a log that lacks a model, ValueError for an array
        of another length.

        >>> import rcjax
        >>> model, log = rcjax.demo_model(), rcjax.sample_log(3, seed=0)
        >>> turned = log.select(log.models[::-1])
        >>> bool((model.calibrate(turned) == model.calibrate(log.logprob)).all())
        True
        """
        if isinstance(logprob, Log):
            logprob = logprob.select(self.models).logprob
        logprob = jnp.asarray(logprob, dtype=self.cost.dtype)
        if logprob.shape[-1:] != (len(self.models),):
            raise ValueError(f"logprob has shape {logprob.shape}; its last axis must be the {len(self.models)} models")
        whole_log = logprob.ndim == 2 and not is_traced(jax.tree.leaves((self.calibrators, logprob)))
        return (calibrate_rows if whole_log else calibrate_all)(self.calibrators, logprob)

    def index(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of the named models; a name that is not a model's raises ValueError."""
        return positions(self.models, names)

    @property
    def provenance(self) -> dict[str, Any]:
        """What was fitted on what: hash and size of the log, versions, date."""
        return dict(self.details.provenance or {})

    @property
    def options(self) -> dict[str, Any]:
        """How it was fitted: `copula`, and `method` or `criterion`; empty if that was not recorded."""
        return dict(self.details.fit or {})

    @property
    def reference(self) -> dict[str, Any] | None:
        """Some queries of the log that it was fitted on, for later logs to be compared with (`rcjax.check_policy`)."""
        return None if self.details.reference is None else dict(self.details.reference)

    @property
    def prices(self) -> dict[str, Any] | None:
        """Money per million input and output tokens by model, where the log was priced by tokens."""
        return None if self.details.prices is None else dict(self.details.prices)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON (numbers round-trip exactly); never leaves a half-written file."""
        write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """The object of its file."""
        return self._head() | self._tail()

    def _head(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "models": list(self.models),
            "transform": self.calibrators.transform,
            "calibrators": margin_to_json(self.calibrators),
        }

    def _tail(self) -> dict[str, Any]:
        return {"cost": np.asarray(self.cost).tolist(), "details": self.details.to_json()}


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("calibrators", "cost"),
    meta_fields=("models",),
    drop_fields=("details",),
)
@dataclasses.dataclass(frozen=True)
class Calibrated(Fitted):
    """The models of a log, calibrated: one frozen pytree. `details` are no part of it, as those of `CascadeModel`."""

    calibrators: Calibrator  # leading axis k
    cost: jax.Array  # (k,) expected cost of one answer, in the log's money
    models: tuple[str, ...]
    details: Details = dataclasses.field(default_factory=Details)  # what was learnt from what


def calibrated(log: Log, transform: Transform | Literal["auto"] = "auto") -> Calibrated:
    """The models of a log, calibrated by its labels.

    Args:
        log: the log to learn from.
        transform: that of the raw confidence; "auto": by the log's task.

    Raises LogError where two models have no queries in common.

    >>> import rcjax
    >>> calibrated(rcjax.sample_log(300, seed=0)).models[0]
    'llama3.2-1b'
    """
    check_overlap(log)
    values = stated_in(log)
    calibrators, _ = calibrate_log(
        *fill_up(log.logprob, expected_log(log).correct, log.answered),
        transform=log.task if transform == "auto" else transform,
        values=None if values is None else jnp.asarray(values, jnp.result_type(float)),
    )
    return Calibrated(calibrators, log.cost, log.models, Details.of_log(log))


def fit_calibrators(
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    transform: Transform,
    values: jax.Array | None = None,
) -> tuple[Calibrator, jax.Array]:
    """(calibrators, confidences (n, k)) of a log.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        transform: that of the raw confidence.
        values: (k, V) raw log-probabilities that models state (`stated_logprobs`); None: no model does.
    """

    def calibrate(logprob: jax.Array, correct: jax.Array, answered: jax.Array, values: jax.Array | None) -> Calibrator:
        return fit_calibrator(logprob, correct, answered, transform=transform, values=values)

    calibrators = map_entries(calibrate, len(logprob), (1, 1, 1, 0))(logprob, correct, answered, values)
    return calibrators, calibrate_all(calibrators, logprob, answered)


# Compiled by itself: all who calibrate logs of one size share it.
calibrate_log = compiled(fit_calibrators, "transform", runs="long")


def stated_in(log: Log) -> np.ndarray | None:
    """`stated_logprobs` of a log, each of its queries once: one that is drawn again states nothing more."""
    rows = list({query: row for row, query in enumerate(log.queries)}.values())
    whole = len(rows) == log.n_queries
    columns = (log.logprob, log.answered) if whole else (np.asarray(x)[rows] for x in (log.logprob, log.answered))
    return stated_logprobs(*columns)


def check_overlap(log: Log) -> None:
    """LogError where two models have fewer than two queries in common."""
    answered = np.asarray(log.answered)
    for i, j in pairs(len(log.models)):
        if (answered[:, i] & answered[:, j]).sum() < 2:
            raise LogError(
                f"{log.source}: fewer than two queries were answered by both {log.models[i]} and {log.models[j]}; "
                f"their dependence cannot be estimated: {_advice_on_overlap(log, i, j)}"
            )


def _advice_on_overlap(log: Log, i: int, j: int) -> str:
    one, other = ([log.queries[row] for row in np.flatnonzero(log.answered[:, j])] for j in (i, j))
    pair = spelt_otherwise(one, other)
    if pair is not None:
        return f"queries are written differently, {pair[0]!r} and {pair[1]!r}: name each of them in one way"
    return "log both on the same queries, or leave one of the two out (models=, on the command line --models)"
