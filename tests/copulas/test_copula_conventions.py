"""Copulas behave as numpyro's and SciPy's distributions do: batches, what lies outside, lists, sharding."""

# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from own_families import Clayton90

import rcjax
from rcjax.copulas import Clayton, SurvivalClayton

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
@pytest.mark.parametrize("copula", [Clayton(2.0), SurvivalClayton(2.0), Clayton90(2.0)], ids=str)
def test_outside_the_unit_square_there_is_no_mass(copula):
    u, v = np.array([-0.5, 1.5, 0.3, 0.3, -1.0, np.nan]), np.array([0.3, 0.3, -0.5, 1.5, 2.0, 0.3])
    np.testing.assert_array_equal(copula.log_density(u, v)[:5], -np.inf)
    np.testing.assert_allclose(copula.cdf(u, v), [0, 0.3, 0, 0.3, 0, np.nan], rtol=1e-15)
    np.testing.assert_array_equal(copula.conditional(0.3, v[2:4]), [0, 1])
    np.testing.assert_array_equal(copula.conditional_on_v(u[:2], 0.3), [0, 1])
    assert np.isnan(copula.log_density(np.nan, 0.3))


@pytest.mark.thorough
def test_error_and_cost_runs_under_shard_map(demo):
    thresholds = jnp.linspace(0.4, 0.6, 8).reshape(2, 4)
    rows = PartitionSpec("rows")

    def figures(model, thresholds):
        return rcjax.solving.error_and_cost(model, thresholds)

    sharded = jax.shard_map(
        figures, mesh=Mesh(np.array(jax.devices()[:1]), ("rows",)), in_specs=(PartitionSpec(), rows), out_specs=rows
    )
    for one, other in zip(sharded(demo, thresholds), figures(demo, thresholds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
