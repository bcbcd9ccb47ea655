"""Queries walking through policies: which model answers each, if any, and which ones were asked."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rcjax._compile import compiled
from rcjax._points import intervals
from rcjax.calibration import Calibrator, calibrate_all

_FEW_BOUNDS = 16  # up to here comparing with every bound beats a binary search


def walk(confidence: jax.Array, first: jax.Array, bounds: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(which model answers, which models are asked), both (k, n) bool, of one policy.

    confidence (k, n) calibrated; the policy in the interval form of `Frontier`: first (), bounds (k, R),
    actions (k, R). No model answers a query that one of them refuses. `vmap` it over policies.

    >>> import numpy as np
    >>> first, bounds, actions = 0, np.array([[0.5, 1.0], [0.0, 1.0]]), np.array([[1, 0], [1, 1]])
    >>> [each.tolist() for each in walk(jnp.array([[0.4, 0.6], [0.9, 0.9]]), first, bounds, actions)]
    [[[False, True], [True, False]], [[True, True], [True, False]]]
    """
    k, n = confidence.shape
    method = "compare_all" if bounds.shape[-1] <= _FEW_BOUNDS else "scan"

    def visit(at, model):
        j, ends, action, column = model
        here = at == j
        target = action[jnp.searchsorted(ends, column, side="left", method=method)]
        return jnp.where(here, target, at), (here & (target == j), here)

    # Asks only go forward, so one pass is enough; `at` is the model that each query is with, ABSTAIN none.
    actions = jnp.asarray(actions)
    models = jnp.arange(k, dtype=actions.dtype), jnp.asarray(bounds), actions, confidence
    return lax.scan(visit, jnp.full(n, first, actions.dtype), models)[1]


def mistaken(answers: jax.Array, correct: jax.Array) -> jax.Array:
    """(n,) bool, the queries that were answered wrongly, from `walk`'s answers and who is right, both (k, n).

    >>> answers = jnp.array([[True, True, False], [False, False, False]])       # the third query was refused
    >>> mistaken(answers, jnp.array([[True, False, False], [True, True, True]])).tolist()
    [False, True, False]
    """
    return answers.any(0) & ~(answers & correct).any(0)


def outcomes(
    confidence: jax.Array,
    correct: jax.Array,
    cost: jax.Array,
    thresholds: jax.Array,
    members: jax.Array,
    refusals: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """(wrong, charge), each (L, n): what cascades with thresholds and members (L, k) make of n queries.

    confidence, correct (n, k); each answer is charged its model's mean cost (k,). With refusals (L, k), (wrong, charge,
    refused): who is refused an answer is not answered wrongly.
    """
    bounds, actions = intervals(thresholds, members, jnp, refusals)

    def one(first, bounds, actions):
        answers, asked = walk(confidence.T, first, bounds, actions)
        return mistaken(answers, correct.T), cost @ asked.astype(cost.dtype), ~answers.any(0)

    wrong, charge, refused = jax.vmap(one)(members.argmax(-1), bounds, actions)
    found = wrong.astype(cost.dtype), charge
    return found if refusals is None else (*found, refused.astype(cost.dtype))


@partial(compiled, runs="long")
def outcomes_on_log(
    calibrators: Calibrator,
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    cost: jax.Array,
    thresholds: jax.Array,
    members: jax.Array,
    refusals: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """`outcomes` of cascades on a log (n, k), compiled; queries that lack a model are walked by a stand-in for it."""
    confidence = calibrate_all(calibrators, logprob, answered)
    return outcomes(confidence, correct, cost, thresholds, members, refusals)
