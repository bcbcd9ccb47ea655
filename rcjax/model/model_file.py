"""The file of a fitted model: its JSON values as records, checked when they are read, and the arrays made of them.

The parameters of its copulas are checked by their families, which know the ranges. Of what models state, a file holds
only the places that are taken.
"""

import dataclasses
from math import inf
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from rcjax._base.checks import inside, require
from rcjax._base.codec import Amount, Between, Names, Object, Positive, Record, Share, check_fields, read
from rcjax._core.json_values import arrays_from_json
from rcjax.model.calibration import CalibrationStatus, Calibrator
from rcjax.model.marginals import Atoms, Marginal
from rcjax.model.stated import SIZES, StatedValues, padded_rows
from rcjax.policy.decisions import Transform

_LOOSE = 1e-4  # to which probabilities sum to 1: files hold them in single precision, or rounded


def _few(value: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    require(len(value) <= SIZES[-1], where, f"must have at most {SIZES[-1]}", len(value))
    return value


@dataclasses.dataclass(frozen=True)
class _Stated(Record):
    logprob: tuple[Annotated[tuple[Annotated[float, Between(high=0.0)] | None, ...], _few], ...]  # None: of 0
    confidence: tuple[tuple[Share, ...], ...]


@dataclasses.dataclass(frozen=True)
class CalibratorFile(Record):
    """The calibrators of k models."""

    coefficients: tuple[tuple[float, float], ...]
    smallest: tuple[float, ...]
    largest: tuple[float, ...]
    standard_errors: tuple[tuple[Amount | None, Amount | None], ...]  # or None
    p_values: tuple[tuple[Share | None, Share | None], ...]
    status: tuple[Annotated[int, Between(0, max(CalibrationStatus))], ...]
    stated: _Stated | None = None


@dataclasses.dataclass(frozen=True)
class _Atoms(Record):
    value: tuple[Annotated[tuple[Share, ...], _few], ...]
    mass: tuple[tuple[Share, ...], ...]


@dataclasses.dataclass(frozen=True)
class MarginalFile(Record):
    """The marginals of k models."""

    lowest: tuple[Share, ...]
    highest: tuple[Share, ...]
    mass_lowest: tuple[Share, ...]
    mass_highest: tuple[Share, ...]
    proportion: tuple[tuple[Share, Share], ...]
    a: tuple[tuple[Positive, Positive], ...]
    b: tuple[tuple[Positive, Positive], ...]
    atoms: _Atoms | None = None


@dataclasses.dataclass(frozen=True)
class ModelFile(Record):
    """The file of a model; without marginals and copulas, of what there is of each model by itself."""

    models: Names
    transform: Transform
    calibrators: CalibratorFile
    cost: tuple[Amount, ...]
    marginals: MarginalFile | None = None
    copula: str | None = None
    copulas: Object | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("calibrators", "cost", "marginals"):
            _of_models(getattr(self, name), name, len(self.models))
        with inside("calibrators"):
            _at_most(self.calibrators, "smallest", "largest")
            _check_rows(self.calibrators.stated, "stated")
        if self.marginals is not None:
            with inside("marginals"):
                _check_marginals(self.marginals)


def _of_models(value: Any, where: str, k: int) -> None:
    """ValueError unless a list, or each list of a record and of those in it, has an entry for each of k models."""
    if isinstance(value, tuple):
        require(len(value) == k, where, f"must be a list of {k}", value)
    elif value is not None:
        for name, column in vars(value).items():
            _of_models(column, f"{where}.{name}", k)


def _at_most(record: Any, low: str, high: str) -> None:
    for i, (one, other) in enumerate(zip(getattr(record, low), getattr(record, high), strict=True)):
        require(one <= other, f"{low}[{i}]", f"must be at most `{high}`", one)


def _check_rows(record: Any, where: str) -> None:
    """ValueError unless each row of the first list rises, and that of the second is as long."""
    if record is None:
        return
    (one, rows), (other, others) = vars(record).items()
    for i, (row, beside) in enumerate(zip(rows, others, strict=True)):
        values = [-inf if value is None else value for value in row]
        require(values == sorted(values), f"{where}.{one}[{i}]", "must rise", row)
        require(len(row) == len(beside), f"{where}.{other}[{i}]", f"must have as many as `{one}`", len(beside))


def _check_marginals(marginals: MarginalFile) -> None:
    _at_most(marginals, "lowest", "highest")
    _check_rows(marginals.atoms, "atoms")
    ends = zip(marginals.mass_lowest, marginals.mass_highest, marginals.proportion, strict=True)
    for i, (low, high, weights) in enumerate(ends):
        mass = low + high + sum(() if marginals.atoms is None else marginals.atoms.mass[i])
        require(mass <= 1 + _LOOSE, f"mass_highest[{i}]", "must, with all other masses, be at most 1", mass)
        require(abs(sum(weights) - 1) <= _LOOSE, f"proportion[{i}]", "must sum to 1", weights)


def arrays_of(part: Any) -> dict[str, Any]:
    """Field → array, of the lists of a record."""
    columns = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return arrays_from_json({name: column for name, column in columns.items() if isinstance(column, tuple)})


def calibrators_from_json(data: Any, transform: Transform) -> Calibrator:
    """The inverse of `margin_to_json`, with the transform of the raw confidences."""
    file = read(CalibratorFile, data, "calibrators")
    calibrators = Calibrator(**arrays_of(file), transform=transform)
    if file.stated is None:
        return calibrators
    logprobs = [[-np.inf if value is None else value for value in row] for row in file.stated.logprob]
    dtype = jnp.result_type(float)
    columns = (jnp.asarray(padded_rows(rows, np.nan), dtype) for rows in (logprobs, file.stated.confidence))
    return dataclasses.replace(calibrators, stated=StatedValues(*columns))


def marginals_from_json(data: Any, calibrators: Calibrator) -> Marginal:
    """The inverse of `margin_to_json`; atoms have as many places as the values that are stated."""
    file = read(MarginalFile, data, "marginals")
    marginals = Marginal(**arrays_of(file))
    if file.atoms is None:
        return marginals
    places = 0 if calibrators.stated is None else calibrators.stated.logprob.shape[-1]
    size = max(places, *map(len, file.atoms.value)) if places else None
    rows = padded_rows(file.atoms.value, np.inf, size), padded_rows(file.atoms.mass, 0.0, size)
    value, mass = (jnp.asarray(column, marginals.highest.dtype) for column in rows)
    return dataclasses.replace(marginals, atoms=Atoms(jnp.minimum(value, marginals.highest[:, None]), mass))
