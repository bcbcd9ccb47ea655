"""The objective: against adaptive quadrature, finer grids, and central differences."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cascade_references import (
    batched,
    make_model,
    pair_reference,
    random_chains,
    take,
)
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.copulas import Gumbel
from rcjax.model import Marginal
from rcjax.solving import error_and_cost, outcomes, smoothed_quantile, solve_frontier

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def chains(float64):
    return random_chains()


SHAPES = st.floats(np.log(0.3), np.log(300)).map(np.exp)
MARGINALS = st.fixed_dictionaries(
    {
        "lowest": st.floats(0.05, 0.4),
        "highest": st.floats(0.7, 0.999),
        "mass_lowest": st.sampled_from([0, 0.003, 0.1, 0.3]),
        "mass_highest": st.sampled_from([0, 0.003, 0.2, 0.45]),
        "proportion": st.floats(0.02, 0.98).map(lambda p: (p, 1 - p)),
        "a": st.tuples(SHAPES, SHAPES),
        "b": st.tuples(SHAPES, SHAPES),
    }
)


@pytest.mark.thorough
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(first=MARGINALS, second=MARGINALS, theta=st.floats(1, 8), threshold=st.floats(0, 1))
def test_any_two_models_match_adaptive_quadrature(first, second, theta, threshold):
    columns = {name: jnp.array([[first[name], second[name]]], float) for name in first}
    models = make_model(Marginal(**columns), Gumbel(jnp.array([[theta]])), jnp.array([[1.0, 7.0]]))
    error, cost = batched(models, np.array([[[threshold]]]))
    expected = pair_reference(take(models, 0), np.array([threshold]))
    np.testing.assert_allclose(error[0], expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(cost[0], expected[1], rtol=1e-9)


@pytest.fixture(scope="module")
def smooth(float64):
    """A model of three without steep corners: central differences are good to nine digits there."""
    marginals = Marginal(
        *(
            jnp.array(column)
            for column in (
                (0.2, 0.25, 0.3),
                (0.85, 0.9, 0.95),
                (0.05, 0.1, 0.02),
                (0.1, 0.05, 0.2),
                ((0.4, 0.6), (0.3, 0.7), (0.5, 0.5)),
                ((2.0, 4.0), (3.0, 2.5), (2.0, 3.0)),
                ((3.0, 2.0), (2.0, 4.0), (2.5, 2.0)),
            )
        )
    )
    return make_model(marginals, Gumbel(jnp.array([1.8, 1.5, 2.4])), jnp.array([1.0, 4.0, 20.0]))


@pytest.mark.thorough
def test_gradients_match_central_differences(smooth):
    """In the thresholds and in every parameter; proportions move along the simplex."""
    thresholds = jnp.array([0.55, 0.65])
    tree = (
        dict(vars(smooth.marginals), proportion=smooth.marginals.proportion[:, 0]),
        smooth.copulas.theta,
        smooth.cost,
        thresholds,
    )
    start, unravel = jax.flatten_util.ravel_pytree(tree)

    def both(flat):
        columns, theta, cost, cuts = unravel(flat)
        share = columns["proportion"]
        marginals = Marginal(**dict(columns, proportion=jnp.stack([share, 1 - share], -1)))
        return jnp.stack(error_and_cost(make_model(marginals, Gumbel(theta), cost), cuts))

    result = jax.jit(jax.jacrev(both))(start)
    step = 1e-3 * jnp.maximum(jnp.abs(start), 0.05)
    moves = jnp.diag(step)
    many = jax.jit(jax.vmap(both))
    near, far = ((many(start + c * moves) - many(start - c * moves)) / (2 * c * step[:, None]) for c in (0.5, 1))
    expected = ((4 * near - far) / 3).T  # Richardson: the step's cubic term cancels
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result[1], expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_shapes_of_thresholds(demo):
    names = (demo.models[0], demo.models[2], demo.models[4])
    short = jnp.array([0.4, 0.6])
    full = jnp.array([0.4, 0.1, 0.6, 0.1, 0.9])
    expected = error_and_cost(demo, short, names)
    for longer in (jnp.append(short, 0.7), full):
        np.testing.assert_array_equal(error_and_cost(demo, longer, names), expected)
    batch = error_and_cost(demo, jnp.broadcast_to(short, (2, 3, 2)), names)
    assert batch[0].shape == batch[1].shape == (2, 3)
    np.testing.assert_allclose(batch[0], expected[0], atol=1e-14)
    np.testing.assert_allclose(batch[1], expected[1], rtol=1e-13)
    assert error_and_cost(demo, jnp.zeros((4, 1)), names[:1])[0].shape == (4,)
    assert error_and_cost(demo, jnp.zeros((4, 0)), names[:1])[0].shape == (4,)


@pytest.mark.parametrize(
    ("thresholds", "names", "message"),
    [
        ((0.5,), ("llama3.1-70b", "llama3.2-1b"), "does not follow the model's order"),
        ((0.5,), ("llama3.2-1b", "gpt-5"), "unknown model 'gpt-5'"),
        ((), (), "non-empty"),
        ((0.5, 0.5, 0.5), ("llama3.2-1b", "llama3.1-70b"), "its last axis"),
        (0.5, ("llama3.2-1b", "llama3.1-70b"), "its last axis"),
    ],
)
def test_bad_cascades_are_refused(demo, thresholds, names, message):
    with pytest.raises(ValueError, match=message):
        error_and_cost(demo, jnp.array(thresholds), names)


@pytest.mark.thorough
def test_extreme_thresholds(chains):
    """0 everywhere is the first model alone, 1 everywhere asks them all and leaves the last one's mean."""
    models, *_ = chains
    cuts = np.broadcast_to([[0.0] * 5, [1.0] * 5], (2, 2, 5))
    error, cost = batched(models, cuts)
    mean = jax.vmap(jax.vmap(lambda m: m.mean_above(m.lowest - 1)))(models.marginals)
    np.testing.assert_allclose(error[:, 0], 1 - mean[:, 0], atol=1e-12)
    np.testing.assert_allclose(cost[:, 0], models.cost[:, 0], rtol=1e-12)
    np.testing.assert_allclose(cost[:, 1], models.cost.sum(-1), rtol=1e-12)
    # All passed on, every model's confidences have their own marginal again.
    np.testing.assert_allclose(error[:, 1], 1 - mean[:, 5], atol=1e-6)


def test_degenerate_marginals_give_no_nan(float64):
    """One value; nothing but masses; no masses; equal and zero costs: value and gradient stay finite."""
    rows = [
        (0.6, 0.6, 0.0, 1.0, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
        (0.1, 0.9, 0.4, 0.6, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
        (0.2, 0.9, 0.0, 0.0, (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
        (0.2, 0.9, 0.1, 0.0, (1e-12, 1.0), (0.3, 6000.0), (0.3, 3000.0)),
    ]
    marginals = Marginal(*(jnp.asarray(column) for column in zip(*rows, strict=True)))
    model = make_model(marginals, Gumbel(jnp.array([1.0, 2.0, 50.0, 3.0, 1.0, 5.0])), jnp.zeros(4))
    rng = np.random.default_rng(0)
    cuts = jnp.array(np.concatenate([rng.uniform(0, 1, (20, 3)), np.full((1, 3), 0.6), np.eye(3)]))
    error, cost = error_and_cost(model, cuts)
    assert np.isfinite(error).all()
    assert ((np.asarray(error) > 0) & (np.asarray(error) < 1)).all()
    np.testing.assert_array_equal(cost, 0)


@pytest.mark.thorough
def test_every_query_ends_with_a_model_of_the_cascade(demo):
    names = "llama3.2-1b", "llama3.1-8b", "llama3.1-70b"
    inside = np.isin(demo.models, names)
    outcome = outcomes(solve_frontier(demo, lam=[100.0, 300.0, 1000.0], cascades=[names]))
    np.testing.assert_allclose(outcome.taken.sum(-1), 1.0, atol=1e-9)
    assert (outcome.members == inside).all()
    assert (outcome.asked[:, ~inside] == 0).all()
    np.testing.assert_array_equal(outcome.answer_cost, np.tile(demo.cost, (3, 1)))


def test_the_smoothed_quantile_goes_to_the_true_one():
    widths = 1e-1, 1e-2, 1e-3, 1e-5
    values, weights = np.array([3.0, 1.0, 9.0, 4.0]), np.array([0.3, 0.4, 0.1, 0.2])
    for level, expected in ((0.2, 1.0), (0.5, 3.0), (0.8, 4.0), (0.95, 9.0)):
        at = jax.jit(lambda width, level=level: smoothed_quantile(values, weights, level, width))
        distance = [abs(float(at(width)) - expected) for width in widths]
        assert (np.diff(distance) <= 0).all()
        assert distance[0] > 0.01 > 1e-3 > distance[-1]


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_level_outside_is_refused(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        smoothed_quantile(jnp.ones(2), jnp.ones(2), level, 0.1)


def test_minimise_works_in_float32():
    with jax.enable_x64(False):
        values, weights = jnp.array([1.0, 3.0, 9.0]), jnp.array([0.6, 0.3, 0.1])
        assert smoothed_quantile(values, weights, 0.9, 0.0) == 3.0  # 0.6 + 0.3 rounds to less than 0.9
