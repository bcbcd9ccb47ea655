"""What a cascade does, path by path, as a pure function: beside `error_and_cost`; derivatives beside differences."""

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax

pytestmark = pytest.mark.usefixtures("float64")

CASCADE = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.mark.thorough
def test_sums_over_paths_are_error_and_cost(demo):
    thresholds = jnp.array([[0.6, 0.7], [0.0, 0.9], [0.8, 0.0]])
    refusals = jnp.array([0.0, 0.5, 0.4])
    for refusing in (None, refusals):
        told = rcjax.solving.outcome(demo, thresholds, CASCADE, refusals=refusing)
        figures = rcjax.solving.error_and_cost(demo, thresholds, CASCADE, refusals=refusing)
        np.testing.assert_allclose(told.error, figures[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(told.cost, figures[1], rtol=1e-9)
        np.testing.assert_allclose(told.refused, 0.0 if refusing is None else figures[2], atol=1e-9)
        np.testing.assert_allclose(told.taken.sum(-1), 1.0, atol=1e-9)
        assert [name for name, asked in zip(demo.models, told.members[0], strict=True) if asked] == [*CASCADE]
    by_row = rcjax.solving.outcome(demo, jnp.full((2, 5), 0.6), CASCADE)
    np.testing.assert_allclose(
        by_row.error, rcjax.solving.error_and_cost(demo, jnp.full((2, 5), 0.6), CASCADE)[0], rtol=1e-9
    )


@pytest.mark.thorough
def test_a_cascade_that_does_not_exist_is_refused(demo):
    with pytest.raises(ValueError, match="unknown model 'nobody'"):
        rcjax.solving.outcome(demo, jnp.array([0.5]), ("nobody",))
    with pytest.raises(ValueError, match=r"thresholds has shape \(4,\)"):
        rcjax.solving.outcome(demo, jnp.zeros(4), CASCADE)
