"""Calibrated models of a log: the calibrator and the mean cost of each model, with the provenance of the fit.

The search by labels needs no more; `CascadeModel` adds marginals and copulas.
"""

import dataclasses
import datetime
import json
import os
import platform
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import SCHEMA_VERSION, Amount, Object, read_fields, read_value, require_subset, to_json_value
from rcjax._base.extras import version
from rcjax._base.files import write_atomically
from rcjax._core.batching import as_json_values, list_pairs, map_entries, pad_to_size_class, unstack
from rcjax._core.compilation import compiled, is_traced
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import describe_kept_sample
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, calibrate_rows, fit_calibrator
from rcjax.model.label_outcomes import expected_log
from rcjax.model.stated import find_stated_logprobs
from rcjax.policy.error_kind import SAME_AS, SCORES
from rcjax.policy.spec import Spec


def fit_provenance(log: Log) -> dict[str, Any]:
    """Describe the log that a model is fitted on, the date and the versions, without the log's folder.

    Every description has these fields:

    - `source`: the file's name without its folder, or the kind of dataframe; `digest`: SHA-256 of the log's content;
    - `task`, `queries`, `complete_queries`, and `answers` by model;
    - `versions` of rcjax, jax and python; `date`: UTC, ISO 8601, to the second.

    It has these fields if the log does:

    - `request_settings`: each model's signal and options;
    - `same_as`: the reference model whose answers count as right (`Reference.to_json`);
    - `scores`: the scale of scores (`Scores.to_json`).
    """
    answers = np.asarray(log.answered).sum(axis=0).tolist()
    optional = {
        "request_settings": log.request_settings,
        SAME_AS: log.reference and log.reference.to_json(),
        SCORES: log.scores and log.scores.to_json(),
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


def _check_fit(options: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return the options of `rcjax.fit` in a model's file: `copula` and `method`; ValueError for others."""
    require_subset([*options], place, ("copula", "method"))
    Spec.from_json(options, place)
    return options


FORMAT = "rcjax-model"


@dataclasses.dataclass(frozen=True)
class FitRecord:
    """The provenance of a model and tables of its fit, as immutable JSON values; None: not recorded.

    >>> record = FitRecord(fit={"copula": "Gumbel"})
    >>> record.to_json(), record == FitRecord.from_json(record.to_json())
    ({'fit': {'copula': 'Gumbel'}}, True)
    """

    provenance: Object | None = None
    """Description of log, date and versions (`fit_provenance`)."""
    kept_sample: Object | None = None
    """Sample of the log's queries (`describe_kept_sample`)."""
    fit: Annotated[Object, _check_fit] | None = None
    """Options of `fit`."""
    prices: Mapping[str, Mapping[str, Amount]] | None = None
    """Money per million input and output tokens, by model."""

    @classmethod
    def of_log(cls, log: Log, **fields: Any) -> "FitRecord":
        """Record a log's provenance, a sample of its queries, and its prices; `fields` holds other fields."""
        prices = None if log.prices is None else {name: price.record() for name, price in log.prices.items()}
        return cls(provenance=fit_provenance(log), kept_sample=describe_kept_sample(log), prices=prices, **fields)

    @classmethod
    def from_json(cls, data: Any) -> "FitRecord":
        """Read the object of `to_json`. Raises ValueError for invalid fields."""
        known = read_fields(cls, data, "record")
        read_value(int, (known.get("provenance") or {}).get("queries", 0), "record.provenance.queries")
        return cls(**{name: data[name] for name in known})

    def to_json(self) -> dict[str, Any]:
        """Return the recorded fields as a JSON object."""
        return {name: value for name, value in vars(self).items() if value is not None}


def calibrators_to_json(calibrators: Calibrator) -> list[dict[str, Any]]:
    """Return the calibration of each model in a policy's format, with `slope_p` and `status` of its fit."""
    rows = unstack(calibrators)
    return [
        to_json_value(row.to_calibration()) | {"slope_p": as_json_values(row.slope_p), "status": int(row.status)}
        for row in rows
    ]


class FittedModel:
    """Base class of fitted models: k calibrators, mean costs and names."""

    calibrators: Calibrator
    cost: jax.Array
    models: tuple[str, ...]
    record: FitRecord

    def calibrate(self, logprob: jax.Array | Log) -> jax.Array:
        """Convert the raw log-probabilities of a log or an array to calibrated confidence.

        For a log of n queries the result is (n, k): columns are found by name, and missing answers give NaN. The last
        axis of an array (…, k) must be in the order of `models`, which may differ from another log's.

        Raises LogError for a log without a model of `models`; ValueError for an array with another last axis.

        >>> import rcjax
        >>> model, log = rcjax.demo_model(), rcjax.sample_log(300, seed=0)
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

    @property
    def provenance(self) -> dict[str, Any]:
        """Description of the log fitted on: hash and size, versions, date."""
        return dict(self.record.provenance or {})

    @property
    def prices(self) -> dict[str, Any] | None:
        """Money per million input and output tokens by model; None if the log was not priced by tokens."""
        return None if self.record.prices is None else dict(self.record.prices)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON, atomically; numbers are exact, stated confidences up to rounding."""
        write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the model's file, which `fitted_from_json` reads."""
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "models": list(self.models),
            "calibrators": calibrators_to_json(self.calibrators),
            **self._dependence(),
            "cost": np.asarray(self.cost).tolist(),
            "record": self.record.to_json(),
        }

    def _dependence(self) -> dict[str, Any]:
        """Return the file's fields for marginals and copulas; none here."""
        return {}


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("calibrators", "cost"),
    meta_fields=("models",),
    drop_fields=("record",),
)
@dataclasses.dataclass(frozen=True, eq=False)
class CalibratedModels(FittedModel):
    """Calibrated models of a log, a frozen pytree without `record`, as `CascadeModel` is."""

    calibrators: Calibrator  # leading axis k
    cost: jax.Array  # (k,) expected cost of one answer, in the log's money
    models: tuple[str, ...]
    record: FitRecord = dataclasses.field(default_factory=FitRecord)  # provenance


def fit_calibrated(log: Log, transform: Transform | Literal["auto"] = "auto") -> CalibratedModels:
    """Fit the calibrators of a log's models to its labels; the transform "auto" is that of the log's task.

    Raises LogError if two models have fewer than two queries in common.

    >>> import rcjax
    >>> fit_calibrated(rcjax.sample_log(300, seed=0)).models[0]
    'llama3.2-1b'
    """
    check_overlap(log)
    return _fit_calibrated(log, log.task if transform == "auto" else transform, find_stated_in_log(log))


def refit_calibrated(model: FittedModel, log: Log) -> CalibratedModels:
    """Fit the calibrators of another log's models, with the transform and the stated values of a fitted model."""
    return _fit_calibrated(log, model.calibrators.transform, model.calibrators.stated_logprobs)


def _fit_calibrated(log: Log, transform: Transform, values: ArrayLike | None) -> CalibratedModels:
    rows = pad_to_size_class(log.logprob, expected_log(log).correct, log.answered)
    calibrators, _ = fit_calibrators_compiled(*rows, transform=transform, values=values)
    return CalibratedModels(calibrators, log.cost, log.models, FitRecord.of_log(log))


def fit_calibrators(
    logprob: jax.Array, correct: jax.Array, answered: jax.Array, transform: Transform, values: jax.Array | None = None
) -> tuple[Calibrator, jax.Array]:
    """Fit the calibrators of k models, and return (calibrators, calibrated confidence (n, k)).

    Args:
        logprob: (n, k) raw log-probability.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        transform: transform of the raw confidence.
        values: (k, V) raw log-probabilities that models state (`find_stated_logprobs`); None: no stated values.
    """

    def calibrate(logprob: jax.Array, correct: jax.Array, answered: jax.Array, values: jax.Array | None) -> Calibrator:
        return fit_calibrator(logprob, correct, answered, transform=transform, values=values)

    calibrators = map_entries(calibrate, len(logprob), (1, 1, 1, 0))(logprob, correct, answered, values)
    return calibrators, calibrate_all(calibrators, logprob, answered)


# Compiled once for all logs of one size.
fit_calibrators_compiled = compiled(fit_calibrators, "transform", runs="long")


def refit_calibrators(fitted: Calibrator, rows: tuple[ArrayLike, ArrayLike, ArrayLike]) -> Calibrator:
    """Fit k calibrators to other rows, with the transform and the stated values of fitted calibrators.

    `rows` are (n, k) each: raw log-probability; whether the answer is right; whether there is an answer that counts.
    """
    padded = pad_to_size_class(*rows)
    return fit_calibrators_compiled(*padded, transform=fitted.transform, values=fitted.stated_logprobs)[0]


def find_stated_in_log(log: Log) -> np.ndarray | None:
    """Find the stated values of a log's models (`find_stated_logprobs`), counting each query once.

    A bootstrap may have drawn a query repeatedly.
    """
    rows = list({query: row for row, query in enumerate(log.queries)}.values())
    all_distinct = len(rows) == log.n_queries
    columns = log.logprob, log.answered
    values = find_stated_logprobs(*(columns if all_distinct else (np.asarray(column)[rows] for column in columns)))
    return None if values is None else values.astype(log.logprob.dtype)


def check_overlap(log: Log) -> None:
    """Raise LogError if two models have fewer than two queries in common."""
    answered = np.asarray(log.answered)
    for i, j in list_pairs(len(log.models)):
        if (answered[:, i] & answered[:, j]).sum() < 2:
            raise LogError(
                f"{log.source}: fewer than two queries were answered by both {log.models[i]} and {log.models[j]}; "
                "no cascade of the two can be judged: log both on the same queries, named alike, or leave one of the "
                "two out (models=, on the command line --models)"
            )
