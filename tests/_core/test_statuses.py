"""Result codes: numbers in arrays and jitted functions, words for people, the same codes as in files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rcjax.frontier.points import PointStatus
from rcjax.model.calibration import CalibrationStatus
from rcjax.model.copula_fitting import FitStatus

#: As files hold them: they must never change.
CODES = {
    PointStatus: ["CONVERGED", "AT_BOUND", "NOT_CONVERGED", "INTERPOLATED", "NO_DATA", "NOT_FINITE"],
    CalibrationStatus: ["CONVERGED", "SEPARABLE", "CONSTANT", "NOT_CONVERGED"],
    FitStatus: ["CONVERGED", "AT_BOUND", "NOT_CONVERGED", "FAILED"],
}


@pytest.mark.parametrize("kind", CODES)
def test_the_codes_are_those_of_files_and_each_has_a_message(kind):
    assert [member.name for member in kind] == CODES[kind]
    assert [int(member) for member in kind] == list(range(len(kind)))
    assert all(member.message for member in kind)
    assert len({member.message for member in kind}) == len(kind)


def test_a_member_is_a_number_in_arrays():
    chosen = jax.jit(lambda x: jnp.where(x > 0, PointStatus.AT_BOUND, PointStatus.CONVERGED))(jnp.array([1.0, -1.0]))
    assert jnp.issubdtype(chosen.dtype, jnp.integer)
    assert [PointStatus(code) for code in chosen.tolist()] == [PointStatus.AT_BOUND, PointStatus.CONVERGED]
    assert (np.full(2, PointStatus.NO_DATA) == 4).all()
