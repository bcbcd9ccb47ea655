"""Queries walking through policies: which model answers each, if any, and which ones were asked.

Under policies that do something for a share of the queries of an interval, what is told is how likely that is over the
lots of the queries: exactly, as what goes to each model is a probability in place of a yes or no.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import NOBODY, Policies
from rcjax.logs.answers import NO_ANSWER
from rcjax.model.calibration import Calibrator, calibrate_all

_FEW_MODELS = 6  # up to here a walk by lots is laid out model by model: on a CPU three to four times as quick


_FEW_BOUNDS = 16  # up to here comparing with every bound beats a binary search


class Walk(NamedTuple):
    """Where each of n queries went under one policy of k models; how likely, as floats, where the policy has shares."""

    answers: jax.Array
    """(k, n) bool: which model answers; none where one of them refuses."""
    asked: jax.Array
    """(k, n) bool: which models are asked."""

    @property
    def refused(self) -> jax.Array:
        """(n,) bool: the query gets no answer."""
        if self.answers.dtype == bool:
            return ~self.answers.any(0)
        left = 1 - self.answers.sum(0)
        rounding = 8 * len(self.answers) * jnp.finfo(left.dtype).eps
        return jnp.where(left > rounding, left, 0)  # exactly 0 where nobody refuses

    def wrong(self, correct: jax.Array) -> jax.Array:
        """(n,) bool: the query is answered wrongly; correct (k, n), who is right. Where that is how likely, so is this.

        >>> where = Walk(jnp.array([[True, True, False], [False, False, False]]), jnp.ones((2, 3), bool))
        >>> where.wrong(jnp.array([[True, False, False], [True, True, True]])).tolist()  # the third was refused
        [False, True, False]
        """
        if self.answers.dtype != bool:
            return jnp.where(self.answers > 0, self.answers * (1 - correct.astype(self.answers.dtype)), 0).sum(0)
        if correct.dtype != bool:
            return jnp.where(self.answers, 1 - correct, 0).sum(0)  # one model answers at most
        return self.answers.any(0) & ~(self.answers & correct).any(0)


def walk(confidence: jax.Array, policy: Policies, answer: jax.Array | None = None) -> Walk:
    """Where n queries go under one policy, by their calibrated confidence (k, n). `vmap` it over policies.

    `answer` (k, n) are codes as `Log.answer` has them, for policies that compare answers; without them no answer is
    known, and confidences decide.

    Of a policy with shares, everything is a probability: the expectation over the lots of the queries.

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
    if policy.shares is not None:
        return _walk_by_lots(confidence, policy, answer)
    if policy.agreements is not None and answer is not None:
        return _walk_comparing(confidence, policy, answer)
    method = "compare_all" if policy.bounds.shape[-1] <= _FEW_BOUNDS else "scan"

    def visit(at: jax.Array, model: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        j, ends, action, column = model
        here = at == j
        target = action[jnp.searchsorted(ends, column, side="left", method=method)]
        return jnp.where(here, target, at), (here & (target == j), here)

    # Asks only go forward, so one pass is enough; `at` is the model that each query is with, ABSTAIN none.
    actions = jnp.asarray(policy.actions)
    models = jnp.arange(k, dtype=actions.dtype), jnp.asarray(policy.bounds), actions, confidence
    return Walk(*lax.scan(visit, jnp.full(n, policy.first, actions.dtype), models)[1])


def _walk_comparing(confidence: jax.Array, policy: Policies, answer: jax.Array) -> Walk:
    """`walk` of a policy that compares answers (k, n)."""
    k, n = confidence.shape
    method = "compare_all" if policy.bounds.shape[-1] <= _FEW_BOUNDS else "scan"
    actions, agreements = jnp.asarray(policy.actions), policy.agreements
    assert agreements is not None

    def visit(carry: tuple[jax.Array, ...], model: tuple[jax.Array, ...]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        at, said = carry
        j, ends, action, column, own, earlier, differ = model
        here = at == j
        target = action[jnp.searchsorted(ends, column, side="left", method=method)]
        other = jnp.where(earlier == NOBODY, NO_ANSWER, said[earlier])  # of a model that was not asked, none
        known = (own != NO_ANSWER) & (other != NO_ANSWER)
        target = jnp.where(known, jnp.where(own == other, j, differ), target)
        said = said.at[j].set(jnp.where(here, own, NO_ANSWER))
        return (jnp.where(here, target, at), said), (here & (target == j), here)

    pair = (jnp.asarray(places).astype(actions.dtype) for places in (agreements.earlier, agreements.differ))
    models = jnp.arange(k, dtype=actions.dtype), jnp.asarray(policy.bounds), actions, confidence, answer, *pair
    start = jnp.full(n, policy.first, actions.dtype), jnp.full((k, n), NO_ANSWER, answer.dtype)
    return Walk(*lax.scan(visit, start, models)[1])


def _walk_by_lots(confidence: jax.Array, policy: Policies, answer: jax.Array | None) -> Walk:
    """`walk` of a policy with shares: with which probability each query comes to each model, and is answered there.

    Where answers (k, n) are compared, which models were asked before is the same for all lots: `Policy` sees to it.
    """
    k, n = confidence.shape
    compared: tuple[Any, ...] = ()
    said = None  # by the models asked so far, where answers are compared
    if policy.agreements is not None and answer is not None:
        compared = answer, jnp.asarray(policy.agreements.earlier), jnp.asarray(policy.agreements.differ)
        said = jnp.full((k, n), NO_ANSWER, answer.dtype)

    def visit(carry: tuple[Any, ...], model: tuple[jax.Array, ...]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        mass, said = carry
        j, ends, moves, column, *told = model
        here, going = mass[j], _going(ends, moves, column)
        if said is not None:
            own, earlier, differ = told
            other = jnp.where(earlier == NOBODY, NO_ANSWER, said[earlier])
            decided = jax.nn.one_hot(jnp.where(own == other, j, differ), k, dtype=mass.dtype, axis=0)
            going = jnp.where((own != NO_ANSWER) & (other != NO_ANSWER), decided, going)
            said = said.at[j].set(jnp.where(here > 0, own, NO_ANSWER))
        sent = here * going
        return (mass + sent, said), (sent[j], here)  # nobody comes to a model after it was visited

    models = jnp.arange(k), jnp.asarray(policy.bounds), _moves(policy, confidence.dtype), confidence, *compared
    start = jnp.zeros((k, n), confidence.dtype).at[policy.first].set(1)
    return Walk(*lax.scan(visit, (start, said), models, unroll=k <= _FEW_MODELS)[1])


def _going(ends: jax.Array, moves: jax.Array, column: jax.Array) -> jax.Array:
    """(k, n) how likely queries with confidences (n,) go to each model: moves (R, k) of intervals with ends (R,)."""
    if len(ends) > _FEW_BOUNDS:
        return moves[jnp.searchsorted(ends, column, side="left", method="scan")].T
    going = jnp.broadcast_to(moves[0, :, None], (moves.shape[1], len(column)))
    for end, move in zip(ends[:-1], moves[1:], strict=True):  # quicker than looking each up
        going = jnp.where(column > end, move[:, None], going)
    return going


def _moves(policy: Policies, dtype: Any) -> jax.Array:
    """(k, R, k) how likely a query of an interval of one model goes to each: to that model itself, it is answered."""
    actions, shares = jnp.asarray(policy.actions), jnp.asarray(policy.shares, dtype)
    targets = jax.nn.one_hot(actions, actions.shape[0], dtype=dtype)  # of ABSTAIN: nowhere

    def back(following: jax.Array, interval: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        target, share = interval
        here = share[:, None] * target + (1 - share)[:, None] * following
        return here, here

    columns = targets.swapaxes(0, 1), shares.T
    return lax.scan(back, jnp.zeros_like(targets[:, 0]), columns, reverse=True)[1].swapaxes(0, 1)


def outcomes(
    confidence: jax.Array,
    correct: jax.Array,
    cost: jax.Array,
    policies: Policies,
    answer: jax.Array | None = None,
) -> Outcomes:
    """What becomes of n queries, (L, n), under each of L policies; of policies with shares, how likely it is.

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
    fates = _outcomes_filled(calibrators, *fill_up(logprob, correct, answered), money, policies, *codes)
    return Outcomes(*(np.asarray(fate)[:, :n] for fate in fates))


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
