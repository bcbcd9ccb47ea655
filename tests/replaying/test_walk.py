"""Queries walking through policies, against a loop over the intervals of each model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.frontier.policies import Policies
from rcjax.replaying.walk import walk

pytestmark = pytest.mark.usefixtures("float64")

K, N = 4, 25
#: Few values, so that confidences often sit on a bound.
LEVELS = np.linspace(0, 1, 6)
walked = jax.jit(walk)


def random_policy(rng, intervals_each):
    """Any rising bounds, equal ones among them, and any model from each on."""
    bounds = np.sort(rng.choice(LEVELS, (K, intervals_each)), axis=1)
    bounds[:, -1] = 1.0
    actions = np.array([rng.integers(j, K, intervals_each) for j in range(K)])
    return Policies(rng.integers(K), bounds, actions, np.ones(K, bool))


def by_loop(confidence, policy):
    """(answers, asked) as the rules say: the first interval whose upper end is not below the confidence."""
    answers, asked = np.zeros((2, *confidence.shape), bool)
    for q in range(confidence.shape[1]):
        j = int(policy.first)
        while True:
            asked[j, q] = True
            rules = zip(policy.bounds[j], policy.actions[j], strict=True)
            action = next(a for end, a in rules if confidence[j, q] <= end)
            if action == j:
                break
            j = int(action)
        answers[j, q] = True
    return answers, asked


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 20]))
def test_a_walk_is_a_loop_over_the_intervals(seed, intervals_each):
    """Twenty bounds are searched by halves, fewer are all compared with."""
    rng = np.random.default_rng(seed)
    policy = random_policy(rng, intervals_each)
    confidence = np.where(rng.uniform(size=(K, N)) < 0.7, rng.choice(LEVELS, (K, N)), rng.uniform(size=(K, N)))
    answers, asked = (np.asarray(each) for each in walked(confidence, policy))
    expected = by_loop(confidence, policy)
    np.testing.assert_array_equal(answers, expected[0])
    np.testing.assert_array_equal(asked, expected[1])
    assert (answers.sum(0) == 1).all()
    assert not (answers & ~asked).any()


def test_a_confidence_on_its_threshold_asks_on():
    policy = Policies.of_cascades(np.array([0.5, 0.0]), np.array([True, True]))
    confidence = jnp.array([[0.5, np.nextafter(0.5, 1)], [0.0, 1.0]])
    answers, asked = walked(confidence, policy)
    assert answers.tolist() == [[False, True], [True, False]]
    assert asked.tolist() == [[True, True], [True, False]]


# -- what becomes of queries in cascades
