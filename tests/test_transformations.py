"""Public functions under JAX's transformations: the table of the page, and each of its cells."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.submodels import of_models
from jax.sharding import Mesh, PartitionSpec

import rcjax

pytestmark = pytest.mark.usefixtures("float64")

PAGE = Path(rcjax.__file__).parent / "docs" / "python.md"
N = 96


class Row(NamedTuple):
    """A function of one array, made of what is cast to the type of floats."""

    make: Callable[[Callable[[Any], Any]], Callable[[jax.Array], jax.Array]]
    at: np.ndarray
    close: float = 1e-4
    """Of float32, relative."""


def of_pair(cast):
    return cast(of_models(rcjax.demo_model(), np.array([0, 4])))


def of_copula(name):
    return lambda cast: lambda x: getattr(rcjax.copulas.Gumbel(cast(jnp.asarray(1.7))), name)(x[0], x[1])


def solved(cast):
    model = of_pair(cast)
    return lambda price: jnp.append(rcjax.solving.solve(model, price * 300.0, "full").thresholds, 0.0)


def figures(cast):
    model = of_pair(cast)
    return lambda x: jnp.stack(rcjax.solving.error_and_cost(model, x)) * jnp.array([1.0, 1e4], x.dtype)


def with_theta(cast, theta):
    model = of_pair(cast)
    return replace(model, copulas=rcjax.copulas.Gumbel(theta))


def fit_by(method):
    """θ by weights, of pairs that were drawn once: in single precision others are drawn."""

    def make(cast):
        u, v = cast(pairs_of_ranks())
        return lambda weights: rcjax.model.fit_copula(u, v, "gumbel", weights, method=method).theta

    return make


@cache
def pairs_of_ranks():
    return rcjax.copulas.Gumbel(2.0).sample(jax.random.key(0), (N,))


COST, ERROR = np.array([1.0, 1.5, 2.2, 3.0]), np.array([0.5, 0.4, 0.35, 0.3])
POINT, LEVELS = np.array([0.3, 0.6]), np.array([0.7])
ROWS = {
    "`Copula.cdf`": Row(of_copula("cdf"), POINT),
    "`Copula.conditional`": Row(of_copula("conditional"), POINT),
    "`Copula.inverse_conditional`": Row(of_copula("inverse_conditional"), POINT),
    "`Copula.log_density`": Row(of_copula("log_density"), POINT),
    "`Copula.from_tau`": Row(lambda cast: lambda x: rcjax.copulas.Gumbel.from_tau(x).theta, np.array([0.3])),
    "`CascadeModel.calibrate`": Row(lambda cast: lambda x: of_pair(cast).calibrate(x), np.array([-0.1, -0.4])),
    "`CascadeModel.log_prob`": Row(lambda cast: lambda x: of_pair(cast).log_prob(x), np.array([0.55, 0.8])),
    # In single precision other numbers are drawn.
    "`CascadeModel.sample`": Row(
        lambda cast: lambda x: with_theta(cast, x).sample(jax.random.key(0), (200,)).mean(0), np.array([1.7]), close=0.1
    ),
    "`fit_copula`": Row(fit_by("tau"), np.ones(N), close=1e-3),
    '`fit_copula(method="likelihood")`': Row(fit_by("likelihood"), np.ones(N), close=1e-3),
    "`error_and_cost`": Row(figures, LEVELS),
    "`solve`": Row(solved, np.array(1.0), close=1e-2),
    "`smoothed_quantile`": Row(
        lambda cast: lambda x: rcjax.solving.smoothed_quantile(x, jnp.full(3, 1 / 3, x.dtype), 0.5, 0.1),
        np.array([0.2, 0.5, 0.9]),
        close=1e-3,
    ),
}


def test_the_page_lists_the_transformations():
    text = PAGE.read_text("utf-8")
    listed = re.search(r"tests each.*?\n\n(- .*?)\n\n(?!-)", text, re.DOTALL)[1]
    assert {*re.findall(r"`[^`]+`", listed)} == {*ROWS}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROWS)
def test_each_transformation_of_the_table_holds(name):
    row = ROWS[name]
    function, at = row.make(lambda tree: tree), jnp.asarray(row.at)
    value = np.asarray(function(at))
    run = jax.jit(function)
    np.testing.assert_allclose(run(at), value, rtol=1e-9, atol=1e-12)
    both = jax.jit(jax.vmap(function))(jnp.stack([at, at * 0.99]))
    np.testing.assert_allclose(both[0], value, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(both[1], run(at * 0.99), rtol=1e-9, atol=1e-12)
    mesh, entries = Mesh(np.array(jax.devices()[:1]), ("entries",)), PartitionSpec("entries")
    spread = jax.jit(jax.shard_map(jax.vmap(function), mesh=mesh, in_specs=entries, out_specs=entries))
    np.testing.assert_allclose(spread(at[None])[0], value, rtol=1e-9, atol=1e-12)
    way = jnp.asarray(np.random.default_rng(0).standard_normal(at.shape)) * 0.1

    def along(t):
        return function(at + t * way)

    slope = jax.jit(lambda t: jax.jvp(along, (t,), (jnp.ones(()),))[1])
    step, here = 1e-5, jnp.zeros(())
    differences = (jax.jit(along)(here + step) - jax.jit(along)(here - step)) / (2 * step)
    np.testing.assert_allclose(slope(here), differences, rtol=1e-4, atol=1e-7)
    second = jax.jit(lambda t: jax.jvp(slope, (t,), (jnp.ones(()),))[1])(here)
    differences = (slope(here + step) - slope(here - step)) / (2 * step)
    np.testing.assert_allclose(second, differences, rtol=1e-3, atol=1e-5)
    with jax.enable_x64(False):
        narrow = jax.jit(row.make(partial(jax.tree.map, narrowed)))(jnp.asarray(row.at, jnp.float32))
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow, value, rtol=row.close, atol=row.close)


def narrowed(leaf):
    return leaf.astype(jnp.float32) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) else leaf
