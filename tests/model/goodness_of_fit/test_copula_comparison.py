"""A fit is a result: parameters with errors, criteria, status, measures, and a test that tells a wrong family."""

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from rcjax.copulas import Clayton
from rcjax.model.goodness_of_fit import compare_copulas

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def pairs(float64):
    u, v = Clayton(2.0).sample(jax.random.key(0), (300,))
    return np.asarray(u), np.asarray(v)


def test_results_are_those_of_another_optimiser_and_stand_by_aic(pairs):
    best, other, none = compare_copulas(*pairs, ["gumbel", "clayton", "independence"])
    assert [one.family for one in (best, other, none)] == ["Clayton", "Gumbel", "Independence"]
    u, v = (scipy.stats.rankdata(x) / 301 for x in pairs)

    def loss(theta):
        density = (1 + theta) * (u * v) ** (-1 - theta) * (u**-theta + v**-theta - 1) ** (-2 - 1 / theta)
        return -np.log(density).sum()

    found = scipy.optimize.minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-9})
    np.testing.assert_allclose(best.parameters["theta"], found.x, rtol=1e-5)
    np.testing.assert_allclose([best.aic, best.bic], [2 + 2 * found.fun, np.log(300) + 2 * found.fun], rtol=1e-8)
    h = 1e-3
    curvature = (loss(found.x + h) - 2 * found.fun + loss(found.x - h)) / h**2
    np.testing.assert_allclose(best.standard_errors["theta"], curvature**-0.5, rtol=1e-3)
    np.testing.assert_allclose(best.tau, found.x / (found.x + 2), rtol=1e-5)
    np.testing.assert_allclose(best.tail_dependence, [2 ** (-1 / found.x), 0], rtol=1e-5)
    assert (none.parameters, none.aic, none.status, best.p_value) == ({}, 0.0, "converged", None)


def test_ranks_alone_count(pairs):
    x, y = pairs
    (one,), (same,) = (compare_copulas(*columns, "frank") for columns in ((x, y), (np.exp(x), -1 / y)))
    assert (one.log_likelihood, one.parameters) == (same.log_likelihood, same.parameters)


@pytest.mark.thorough
def test_the_test_of_fit_tells_the_wrong_family(pairs):
    right, wrong = compare_copulas(*pairs, ["clayton", "gumbel"], replicates=200)
    assert right.p_value > 0.05 > wrong.p_value


@pytest.mark.parametrize(
    ("x", "y", "families", "message"),
    [
        (np.zeros(9), np.zeros(9), "auto", "x and y have shapes"),
        (np.arange(20.0), np.arange(19.0), "auto", "both must be"),
        (np.r_[np.nan, np.arange(19.0)], np.arange(20.0), "auto", r"x\[0\] is no finite number"),
        (np.arange(20.0), np.arange(20.0), "nope", "unknown copula 'nope'"),
    ],
)
def test_bad_input_gets_one_line(x, y, families, message):
    with pytest.raises(ValueError, match=message):
        compare_copulas(x, y, families)
