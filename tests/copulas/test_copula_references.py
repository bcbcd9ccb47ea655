"""Copulas against oracles of 25 to 400 digits."""

# Parameters are annotated as arrays, and a rotation has those of its family, which a type checker cannot see.
# pyright: reportArgumentType=false, reportCallIssue=false

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rcjax.copulas import (
    Clayton,
    Frank,
    Gaussian,
    Gumbel,
    Independence,
    Joe,
    StudentT,
    SurvivalClayton,
    SurvivalGumbel,
)

pytestmark = pytest.mark.usefixtures("float64")

ORACLES = {
    "independence": Independence,
    "gumbel": Gumbel,
    "survival_gumbel": SurvivalGumbel,
    "clayton": Clayton,
    "survival_clayton": SurvivalClayton,
    "frank": Frank,
    "joe": Joe,
    "gaussian": Gaussian,
}
#: (ρ, ν, u, v, C, h, log c), by mpmath with 25 digits: h and c from their formulas, C by integrating h over x.
STUDENT = np.array([
    (0.5, 4, 0.3, 0.6, 0.24280940140298069, 0.73932850227382668, 0.001850286562058982),
    (-0.9, 2, 0.2, 0.75, 0.029557942739584143, 0.38828016464666531, 1.2170807694950701),
    (0.95, 30, 0.9, 0.85, 0.84204622159128348, 0.27567669650454536, 1.5309333213345071),
    (0.7, 4, 1e-6, 1e-5, 7.5734832206467121e-7, 0.65887815970503602, 9.6155765243774286),
    (0.3, 8, 1e-6, 0.5, 8.1012782213023803e-7, 0.80890030629412093, -1.8195802058342085),
    (-0.5, 40, 0.01, 0.02, 2.7418720328818206e-6, 0.00037804593130748424, -3.6045323015146023),
    (0.9, 2, 1e-12, 1e-11, 9.6297159535379131e-13, 0.94844263210911105, 21.80809433296796),
    (0.5, 3, 0.3, 0.7, 0.25964041901340887, 0.83489425547668336, -0.1991280907600505),
    (0.0, 2, 0.4, 0.05, 0.023098233482879096, 0.019683972274030682, -0.54333912490793284),
    (-0.8, 12, 0.999, 0.001, 0.00063913028944350401, 0.19184509556482925, 5.0909272518858374),
    (0.99, 6, 0.5, 0.5005, 0.47772234006678971, 0.50385091703933587, 2.0414210398837376),
])  # fmt: skip


@jax.jit
def every(copula, u, v):
    """All methods at once: one program for each family."""
    return copula.cdf(u, v), copula.conditional(u, v), copula.log_density(u, v)


def oracles(folder, name):
    """(the family, its rows: parameters, u, v, C, h, log c)."""
    if name == "student":
        rho, df, *columns = STUDENT.T
        return StudentT, ((rho, df), *columns)
    with open(folder / "copula_oracles.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["family"] == name]
    assert len(rows) >= 12
    columns = ("theta", "u", "v", "cdf", "h", "log_density")
    theta, u, v, cdf, h, log_density = (np.array([float(row[column]) for row in rows]) for column in columns)
    # The file has −3.3e-47 here, where its quadrature ended: mpmath's integral of h in its place.
    lost = (cdf < 0) & (u == 1e-6) & (v == 0.5) & (theta == -0.95)
    assert lost.sum() == (name == "gaussian")
    return ORACLES[name], ((theta,), u, v, np.where(lost, 1.05993271022e-54, cdf), h, log_density)


def compare(cls, rows, tolerance):
    parameters, u, v, *columns = rows
    copulas = cls(*(jnp.asarray(parameter) for parameter in parameters))
    smallest = np.finfo(jax.tree.leaves(copulas)[0].dtype).tiny
    cdf, h, log_density = (np.asarray(ours, float) for ours in every(copulas, u, v))
    for ours, oracle in zip((cdf, h), columns[:2], strict=True):
        held = oracle > smallest
        assert held.sum() >= len(held) - 1
        error = np.abs(np.log(ours[held]) - np.log(oracle[held]))
        assert np.all(error <= tolerance * np.maximum(1, np.abs(np.log(oracle[held]))))
        assert np.all(ours[~held] <= smallest)
    assert np.all(np.abs(log_density - columns[2]) <= tolerance * np.maximum(1, np.abs(columns[2])))


def in_single_precision(rows):
    # Only points that float32 can write: 1 − 1e-12 rounds to 1, another point.
    held = np.all([np.abs(z - z.astype(np.float32)) <= 1e-7 * np.minimum(z, 1 - z) for z in rows[1:3]], axis=0)
    assert held.sum() >= 6
    parameters, *columns = rows
    return tuple(column[held] for column in parameters), *(column[held] for column in columns)


@pytest.mark.parametrize("name", [*ORACLES, "student"])
def test_every_family_matches_the_oracles(shared_reference, name):
    compare(*oracles(shared_reference, name), 1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*ORACLES, "student"])
def test_every_family_matches_the_oracles_in_float32(shared_reference, float32, name):
    family, rows = oracles(shared_reference, name)
    compare(family, in_single_precision(rows), 1e-4)
