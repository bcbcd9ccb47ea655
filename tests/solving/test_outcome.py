"""What a cascade does, path by path, as a pure function: arrays of all models, the cascade's alone asked."""

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax

pytestmark = pytest.mark.usefixtures("float64")

CASCADE = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.mark.thorough
def test_every_query_ends_with_a_model_of_the_cascade(demo):
    thresholds = jnp.array([[0.6, 0.7], [0.0, 0.9], [0.8, 0.0]])
    inside = np.isin(demo.models, CASCADE)
    told = rcjax.solving.outcome(demo, thresholds, CASCADE)
    np.testing.assert_allclose(told.taken.sum(-1), 1.0, atol=1e-9)
    assert (told.members == inside).all()
    assert (told.asked[:, ~inside] == 0).all()
    np.testing.assert_array_equal(told.price, np.tile(demo.cost, (3, 1)))
    by_row = rcjax.solving.outcome(demo, jnp.array([0.6, 1.0, 0.7, 1.0, 0.0]), CASCADE)
    np.testing.assert_allclose(by_row.wrong, rcjax.solving.outcome(demo, thresholds[0], CASCADE).wrong, rtol=1e-9)
