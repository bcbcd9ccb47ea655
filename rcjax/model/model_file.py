"""The JSON values of a fitted model, checked before arrays are made of them.

Everything but the parameters of its copulas, whose ranges their families know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

from rcjax._base import json_checks as check
from rcjax._base.json_checks import amount, number, of_length, optional, require, share
from rcjax.model.margin_files import FORMAT
from rcjax.policy.calibrations import NO_CONFIDENCE, TRANSFORMS
from rcjax.policy.record import recorded_count
from rcjax.policy.spec import read_fit

_MOST_STATED = 32


_STATUSES = 4  # of a calibrator: see `rcjax.model.calibration`


_LOOSE = 1e-4  # to which probabilities sum to 1: files hold them in single precision, or rounded


_pair = partial(of_length, n=2)


_CALIBRATORS = {
    "coefficients": partial(_pair, check=number),
    "smallest": number,
    "largest": number,
    "standard_errors": partial(_pair, check=partial(optional, check=amount)),  # null where there is none
    "p_values": partial(_pair, check=partial(optional, check=share)),
    "status": partial(check.whole, high=_STATUSES - 1),
}


_MARGINALS = {
    "lowest": share,
    "highest": share,
    "mass_lowest": share,
    "mass_highest": share,
    "proportion": partial(_pair, check=share),
    "a": partial(_pair, check=check.positive),
    "b": partial(_pair, check=check.positive),
}


def check_model(data: Any, whole: bool = True) -> tuple[str, ...]:
    """The names of a model's models; ValueError names the place of what cannot be right in its JSON values.

    Args:
        data: the object of its file.
        whole: whether it is to have marginals.
    """
    check.header(data, FORMAT)
    models = check.names(data.get("models"), "models")
    check.choice(data.get("transform"), "transform", TRANSFORMS)
    calibrators = _columns(data.get("calibrators"), "calibrators", _CALIBRATORS, len(models))
    _in_order(calibrators, "calibrators", ("smallest", "largest"))
    _check_stated(data["calibrators"].get("stated"), "calibrators.stated", len(models))
    if whole:
        _check_marginals(data.get("marginals"), len(models))
    of_length(data.get("cost"), "cost", len(models), amount)
    check_details(data.get("details", {}), "details")
    return models


def _check_marginals(value: Any, k: int) -> None:
    marginals = _columns(value, "marginals", _MARGINALS, k)
    _in_order(marginals, "marginals", ("lowest", "highest"))
    for i, (low, high) in enumerate(zip(marginals["mass_lowest"], marginals["mass_highest"], strict=True)):
        at = f"marginals.mass_highest[{i}]"
        require(low + high <= 1 + _LOOSE, at, "must be at most 1 − mass_lowest", high)
    _check_atoms(value.get("atoms"), "marginals.atoms", marginals)
    for i, weights in enumerate(marginals["proportion"]):
        require(abs(sum(weights) - 1) <= _LOOSE, f"marginals.proportion[{i}]", "must sum to 1", weights)


def _check_stated(value: Any, where: str, k: int) -> None:
    """ValueError unless it is None, or the values that each of k models states, with their calibrated confidences."""
    if value is None:
        return
    columns = _rows_of(value, where, {"logprob": partial(optional, check=_logprob), "confidence": share}, k)
    for i, row in enumerate(columns["logprob"]):
        rising = [-inf if entry is None else entry for entry in row]
        require(all(a < b for a, b in pairwise(rising)), f"{where}.logprob[{i}]", "must rise", list(row))
        read = zip(row, columns["confidence"][i], strict=True)
        confidence = [calibrated for raw, calibrated in read if raw != NO_CONFIDENCE]
        monotone = confidence in (sorted(confidence), sorted(confidence, reverse=True))
        require(monotone, f"{where}.confidence[{i}]", "must rise, or fall", confidence)


def _check_atoms(value: Any, where: str, marginals: Mapping[str, Sequence[Any]]) -> None:
    """ValueError unless it is None, or point masses between the ends of each of the marginals."""
    if value is None:
        return
    columns = _rows_of(value, where, {"value": share, "mass": share}, len(marginals["lowest"]))
    ends = zip(marginals["mass_lowest"], marginals["mass_highest"], strict=True)
    for i, (low, high) in enumerate(ends):
        values, held = list(columns["value"][i]), sum(columns["mass"][i]) + low + high
        require(values == sorted(values), f"{where}.value[{i}]", "must rise", values)
        require(held <= 1 + _LOOSE, f"{where}.mass[{i}]", "must, with the masses at the ends, be at most 1", held)


def _rows_of(value: Any, where: str, checks: Mapping[str, Any], k: int) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """Two columns of k rows, each row of one as long as that of the other, with the check of their entries."""
    lists = {name: partial(check.entries, check=check_one) for name, check_one in checks.items()}
    columns, names = _columns(value, where, lists, k), tuple(checks)
    for i, rows in enumerate(zip(*columns.values(), strict=True)):
        sizes = [len(row) for row in rows]
        require(sizes[0] <= _MOST_STATED, f"{where}.{names[0]}[{i}]", f"must have at most {_MOST_STATED}", sizes[0])
        require(sizes[0] == sizes[1], f"{where}.{names[1]}[{i}]", f"must have as many as `{names[0]}`", sizes[1])
    return columns


def _logprob(value: Any, where: str) -> float:
    return number(value, where, high=0.0)


def check_details(value: Any, where: str) -> None:
    """ValueError unless it is what a model keeps of its log and its fit, as far as rcjax reads it."""
    details = check.items(value, where, check.frozen)
    provenance = check.items(details.get("provenance", {}), f"{where}.provenance", check.as_it_is)
    with check.inside(where):
        recorded_count(provenance, "queries", 0)
    read_fit(details.get("fit", {}), f"{where}.fit")
    for name, kind in (("reference", Mapping), ("prices", Mapping), ("copulas", Sequence)):
        held = details.get(name)
        what = "must be an object, or null" if kind is Mapping else "must be a list, or null"
        fits = held is None or (isinstance(held, kind) and not isinstance(held, str))
        require(fits, f"{where}.{name}", what, held)
    optional(details.get("prices"), f"{where}.prices", partial(check.items, check=check.amounts))


def check_members(value: Any, pairs: int) -> tuple[tuple[str, Any], ...]:
    """The names and parameters of the families of a model with several; `value` tells which pair has which."""
    copulas = check.items(value, "copulas", check.as_it_is)
    members = check.entries(copulas.get("members"), "copulas.members", partial(check.items, check=check.as_it_is))
    of_length(copulas.get("index"), "copulas.index", pairs, partial(check.whole, high=len(members) - 1))
    return tuple(
        (check.name(member.get("copula"), f"copulas.members[{i}].copula"), member.get("copulas"))
        for i, member in enumerate(members)
    )


def check_parameters(value: Any, where: str, names: Sequence[str], pairs: int) -> dict[str, tuple[float, ...]]:
    """The parameters of a family, by name; other keys are left out.

    Args:
        value: what the file holds there.
        where: the place, for the message.
        names: of the parameters.
        pairs: how many values each has.
    """
    return _columns(value, where, dict.fromkeys(names, number), pairs)


def _columns(value: Any, where: str, checks: Mapping[str, Any], n: int) -> dict[str, tuple[Any, ...]]:
    """The named lists of an object, of n entries each."""
    columns = check.items(value, where, check.as_it_is)
    return {name: of_length(columns.get(name), f"{where}.{name}", n, read) for name, read in checks.items()}


def _in_order(columns: Mapping[str, Sequence[float]], where: str, names: tuple[str, str]) -> None:
    """ValueError where an entry of the first column is above that of the second."""
    for i, (low, high) in enumerate(zip(*(columns[name] for name in names), strict=True)):
        require(low <= high, f"{where}.{names[0]}[{i}]", f"must be at most `{names[1]}`", low)
