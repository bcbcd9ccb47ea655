"""Queries walking through policies: which model answers each, if any, and which ones were asked."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import NOBODY, Policies
from rcjax.logs.log import NO_ANSWER
from rcjax.model.calibration import Calibrator, calibrate_all

_FEW_BOUNDS = 16  # up to here comparing with every bound beats a binary search


class Walk(NamedTuple):
    """Where each of n queries went under one policy of k models."""

    answers: jax.Array
    """(k, n) bool: which model answers; none if one of them refuses."""
    asked: jax.Array
    """(k, n) bool: which models are asked."""

    @property
    def refused(self) -> jax.Array:
        """(n,) bool: the query gets no answer."""
        return ~self.answers.any(0)

    def wrong(self, correct: jax.Array) -> jax.Array:
        """(n,) bool: the query is answered wrongly; correct (k, n), who is right, or a score.

        >>> where = Walk(jnp.array([[True, True, False], [False, False, False]]), jnp.ones((2, 3), bool))
        >>> where.wrong(jnp.array([[True, False, False], [True, True, True]])).tolist()  # the third was refused
        [False, True, False]
        """
        if correct.dtype != bool:
            return jnp.where(self.answers, 1 - correct, 0).sum(0)  # one model answers at most
        return self.answers.any(0) & ~(self.answers & correct).any(0)


def walk(confidence: jax.Array, policy: Policies, answer: jax.Array | None = None) -> Walk:
    """Where n queries go under one policy, by their calibrated confidence (k, n). `vmap` it over policies.

    `answer` (k, n) are codes as `Log.answer` has them, for policies that compare answers; without them no answer is
    known, and confidences decide.

    >>> import numpy as np
    >>> policy = Policies.of_cascades(np.array([0.5, 0.0]), np.array([True, True]))
    >>> [where.tolist() for where in walk(jnp.array([[0.4, 0.6], [0.9, 0.9]]), policy)]
    [[[False, True], [True, False]], [[True, True], [True, False]]]

    With agreement, the second model's answer is kept where it is the first one's:

    >>> from rcjax.frontier.policies import Agreements
    >>> agreements = Agreements(np.array([-1, 0, -1]), np.array([-1, 2, -1]))
    >>> policy = Policies.of_cascades(np.array([1.0, 0.5, 0.0]), np.ones(3, bool), agreements=agreements)
    >>> walk(jnp.zeros((3, 2)), policy, jnp.array([[0, 0], [0, 1], [2, 1]])).answers.tolist()
    [[False, False], [True, False], [False, True]]
    """
    k, n = confidence.shape
    method = "compare_all" if policy.bounds.shape[-1] <= _FEW_BOUNDS else "scan"
    actions, columns, known = jnp.asarray(policy.actions), [], None
    if policy.agreements is not None and answer is not None:
        places = policy.agreements.earlier, policy.agreements.differ
        columns = [answer, *(jnp.asarray(place).astype(actions.dtype) for place in places)]
        known = jnp.full((k, n), NO_ANSWER, answer.dtype)  # the answers of the models asked so far

    def visit(carry: tuple[jax.Array, Any], model: tuple[jax.Array, ...]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        (at, known), (j, ends, action, column, *compared) = carry, model
        here = at == j
        target = action[jnp.searchsorted(ends, column, side="left", method=method)]
        if compared:
            code, earlier, differ = compared
            other = jnp.where(earlier == NOBODY, NO_ANSWER, known[earlier])  # of a model that was not asked, none
            comparable = (code != NO_ANSWER) & (other != NO_ANSWER)
            target = jnp.where(comparable, jnp.where(code == other, j, differ), target)
            known = known.at[j].set(jnp.where(here, code, NO_ANSWER))
        return (jnp.where(here, target, at), known), (here & (target == j), here)

    # Asks only go forward, so one pass is enough; `at` is the model that each query is with, ABSTAIN none.
    models = jnp.arange(k, dtype=actions.dtype), jnp.asarray(policy.bounds), actions, confidence, *columns
    return Walk(*lax.scan(visit, (jnp.full(n, policy.first, actions.dtype), known), models)[1])


def outcomes(
    confidence: jax.Array,
    correct: jax.Array,
    cost: jax.Array,
    policies: Policies,
    answer: jax.Array | None = None,
) -> Outcomes:
    """What becomes of n queries, (L, n), under each of L policies.

    Who is refused an answer is not answered wrongly.

    Args:
        confidence: (n, k) calibrated.
        correct: (n, k) whether the answer is right.
        cost: (k,) what each answer is charged, its model's mean cost; or (n, k), its own.
        policies: L policies over k models.
        answer: (n, k) codes, for policies that compare answers.
    """
    codes = None if answer is None else answer.T

    def one(policy: Policies) -> Outcomes:
        where = walk(confidence.T, policy, codes)
        asked = where.asked.astype(cost.dtype)
        charged = cost @ asked if cost.ndim == 1 else (cost.T * asked).sum(0)
        shares = where.wrong(correct.T), charged, where.refused
        return Outcomes(*(share.astype(cost.dtype) for share in shares))

    return jax.vmap(one)(policies)


def outcomes_on_log(
    calibrators: Calibrator,
    logprob: ArrayLike,
    correct: ArrayLike,
    answered: ArrayLike,
    cost: ArrayLike,
    policies: Policies,
    answer: ArrayLike | None = None,
) -> Outcomes:
    """`outcomes` on a log, compiled, in numpy's arrays; queries that lack a model are walked by a stand-in.

    Args:
        calibrators: (k,) of the models.
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        cost: (k,) what each answer is charged, its model's mean cost; or (n, k), its own.
        policies: L policies over k models.
        answer: (n, k) codes, for policies that compare answers.
    """
    n = np.shape(logprob)[0]
    codes = () if answer is None or policies.agreements is None else fill_up(answer)
    money = fill_up(cost)[0] if np.ndim(cost) > 1 else cost
    shares = _outcomes_filled(calibrators, *fill_up(logprob, correct, answered), money, policies, *codes)
    return Outcomes(*(np.asarray(share)[:, :n] for share in shares))


@partial(compiled, runs="long")
def _outcomes_filled(
    calibrators: Calibrator,
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    cost: jax.Array,
    policies: Policies,
    answer: jax.Array | None = None,
) -> Outcomes:
    return outcomes(calibrate_all(calibrators, logprob, answered), correct, cost, policies, answer)
