"""Two fits of the same models are one pytree: they stack, meet in a condition, and share what is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def fits(float64):
    """Fits of two logs of one size."""
    return tuple(rcjax.fit(rcjax.sample_log(192, seed=seed)) for seed in (0, 1))


@pytest.mark.thorough
def test_they_stack_into_a_model_that_claims_neither_log(fits):
    both = jax.tree.map(lambda *parts: jnp.stack(parts), *fits)
    assert both.cost.shape == (2, 5)
    assert both.models == fits[0].models
    assert both.provenance == {}
    assert both.options == {}


@pytest.mark.thorough
def test_they_share_what_is_compiled(fits, compilations):
    loss = jax.jit(lambda model: model.copulas.tau().sum() + model.cost.sum())
    loss(fits[0])
    with compilations() as compiled:
        figures = loss(fits[1])
    assert not compiled
    np.testing.assert_allclose(figures, fits[1].copulas.tau().sum() + fits[1].cost.sum())
