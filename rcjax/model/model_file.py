"""The file of a fitted model: records that check its JSON values, and their conversion to arrays and back.

A calibrator has a policy's calibration plus the status of its fit. Families of copulas check the ranges of their
parameters. Stated values and atoms are written without padding.
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.checks import inside, require
from rcjax._base.codec import Amount, Between, Names, Object, Positive, Record, Share, check_fields, read
from rcjax._core.batching import unstack
from rcjax._core.json_values import plain
from rcjax.model.beta_mixture import BetaMixture
from rcjax.model.calibration import CalibrationStatus, Calibrator
from rcjax.model.marginals import Atoms, Marginal, as_marginal
from rcjax.model.stated import SIZES, padded_rows
from rcjax.policy.decisions import Calibration


def _few(value: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    require(len(value) <= SIZES[-1], where, f"must have at most {SIZES[-1]}", len(value))
    return value


@dataclasses.dataclass(frozen=True)
class CalibratorFile(Calibration):
    """Calibrator of one model in a model file."""

    slope_p: Share | None = None
    status: Annotated[int, Between(0, max(CalibrationStatus))] = 0

    def __post_init__(self) -> None:
        Calibration.__post_init__(self)
        _few(self.stated or (), "stated")


_ENDS, _MIXTURE = ("lowest", "highest", "mass_lowest", "mass_highest"), ("proportion", "a", "b")


@dataclasses.dataclass(frozen=True)
class MarginalFile(Record):
    """Marginal of one model in a model file."""

    lowest: Share
    highest: Share
    mass_lowest: Share
    mass_highest: Share
    proportion: tuple[Share, Share] | None = None
    a: tuple[Positive, Positive] | None = None
    b: tuple[Positive, Positive] | None = None
    atoms: Annotated[tuple[tuple[Share, Share], ...], _few] | None = None
    """(value, mass) of each atom."""
    family: str | None = None
    """Class name of the smooth part; None: the mixture of two betas, with `proportion`, `a` and `b`."""
    parameters: Object | None = None
    """Parameters of another family, by name."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.family is None:
            for name in ("proportion", "a", "b"):
                require(getattr(self, name) is not None, name, "must be a list of 2", None)


@dataclasses.dataclass(frozen=True)
class ModelFile(Record):
    """The file of a `CascadeModel`, or, without marginals and copulas, of a `Calibrated`."""

    models: Names
    calibrators: tuple[CalibratorFile, ...]
    cost: tuple[Amount, ...]
    marginals: tuple[MarginalFile, ...] | None = None
    copula: str | None = None
    copulas: Object | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("calibrators", "cost", "marginals"):
            value, k = getattr(self, name), len(self.models)
            require(value is None or len(value) == k, name, f"must be a list of {k}", value)


def calibrators_from_json(data: Any) -> Calibrator:
    """The inverse of `calibrators_to_json`."""
    files: tuple[CalibratorFile, ...] = read(tuple[CalibratorFile, ...], data, "calibrators")
    alike = {file.transform for file in files}
    require(len(alike) == 1, "calibrators", "must have one transform", sorted(alike))
    slope_p = np.array([file.slope_p for file in files], float)  # None is NaN
    status = np.array([file.status for file in files])
    calibrators: Any = Calibrator.of(files, jnp.result_type(float))
    return jax.device_put(dataclasses.replace(calibrators, slope_p=slope_p, status=status))


def marginals_to_json(marginals: Marginal) -> list[dict[str, Any]]:
    """The marginal of each model as JSON, its atoms without padding."""
    return [_marginal_to_json(marginal) for marginal in unstack(marginals)]


def _marginal_to_json(marginal: Marginal) -> dict[str, Any]:
    data = {name: plain(values) for name, values in vars(marginal).items() if name != "atoms"}
    if not isinstance(marginal, BetaMixture):
        data = {name: data[name] for name in _ENDS} | {
            "family": type(marginal).__name__,
            "parameters": {name: data[name] for name in marginal.supports},
        }
    if marginal.atoms is None:
        return data
    pairs = zip(plain(marginal.atoms.value), plain(marginal.atoms.mass), strict=True)
    return data | {"atoms": [[value, mass] for value, mass in pairs if mass > 0]}


def marginals_from_json(data: Any, calibrators: Calibrator) -> Marginal:
    """The inverse of `marginals_to_json`; atoms are padded to the number of stated values."""
    files: tuple[MarginalFile, ...] = read(tuple[MarginalFile, ...], data, "marginals")
    dtype, family = jnp.result_type(float), _family_of(files)
    columns: dict[str, Any] = {name: np.array([getattr(file, name) for file in files], dtype) for name in _ENDS}
    if family is BetaMixture:
        columns |= {name: np.array([getattr(file, name) for file in files], dtype) for name in _MIXTURE}
    else:
        where = "marginals.parameters"
        held = [read(Object, file.parameters, where) for file in files]
        for name in family.supports:
            columns[name] = np.array([read(float, row.get(name), f"{where}.{name}") for row in held], dtype)
    rows = [file.atoms or () for file in files]
    places = 0 if calibrators.values is None else calibrators.values.shape[-1]
    if places or any(rows):
        size = max(places, *map(len, rows)) if places else None
        value = padded_rows([[value for value, _ in row] for row in rows], np.inf, size)
        mass = padded_rows([[mass for _, mass in row] for row in rows], 0.0, size)
        value = np.minimum(value, columns["highest"][:, None])
        columns["atoms"] = Atoms(value.astype(dtype), mass.astype(dtype))  # pyright: ignore
    with inside("marginals"):
        return jax.device_put(family(**columns))


def _family_of(files: tuple[MarginalFile, ...]) -> type[Marginal]:
    """The family that all marginals share; ValueError for an unknown family, or several."""
    names = {file.family for file in files}
    require(len(names) == 1, "marginals", "must have one family", sorted(map(str, names)))
    name = names.pop()
    with inside("marginals"):
        return BetaMixture if name is None else as_marginal(name)
