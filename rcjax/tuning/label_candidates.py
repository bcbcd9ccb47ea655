"""Single models and pairs of models, judged on the queries of the log itself: no copula, and labels with less noise.

A pair that asks model i and, where Φ_i ≤ φ, then model j, errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

Labels are averaged with what is expected of them (`judging`). A pair costs what its path costs on each of the queries:
those that are passed on may be longer than others. Queries of one confidence stay together: between two thresholds
stands a ladder of both.

Where models may refuse to answer, the last one of a policy does so up to the confidence that is best for it alone. A
refusal counts as right with probability R = 1 − (what it costs, in errors).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import map_entries
from rcjax._core.numerics import divide
from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.model.calibration import Calibrator, calibrate_all
from rcjax.model.pairs import pairs
from rcjax.tuning.candidates import Candidates, together
from rcjax.tuning.judging import Judging, centred, cross_calibrate
from rcjax.tuning.label_refusals import refuse_alone, spread_cuts

#: Thresholds tried for each pair, at most.
MOST_THRESHOLDS = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CandidateRows:
    """What is known of n queries, and P pairs of k models."""

    confidence: Any  # (n, k) calibrated
    crossed: Any  # (P, n) of `cross_calibrate`
    correct: Any  # (n, k) whether the answer is right
    present: Any  # (n, k) whether there is an answer and the query is to count
    charge: Any = None  # (n, k) money of each answer, or (k,) of any; None where none is asked for
    answer: Any = None  # (n, k) codes of answers, as `Log.answer` has them; None where none are compared

    @classmethod
    def of(
        cls,
        calibrators: Calibrator,
        rows: tuple[jax.Array, jax.Array, jax.Array],
        charge: Any = None,
        answer: Any = None,
        answered: jax.Array | None = None,
    ) -> "CandidateRows":
        """With what their own labels and raw confidences tell of one model by another.

        Args:
            calibrators: (k,) of the models.
            rows: (logprob, correct, present), each (n, k): raw log-probabilities, whether the answer is right, and
                whether there is one and the query is to count.
            charge, answer: as the fields.
            answered: (n, k) whether there is an answer, where not all of them are to count.
        """
        logprob, correct, present = rows
        crossed = cross_calibrate(logprob, correct, present, calibrators.transform, answered)
        confidence = calibrate_all(calibrators, logprob, present if answered is None else answered)
        return cls(confidence, crossed, correct, present, charge, answer)

    @property
    def charges(self) -> jax.Array:
        """(n, k) money of each answer."""
        return jnp.broadcast_to(self.charge, self.confidence.shape)

    def told(self, model: Any, other: Any) -> jax.Array:
        """(n,) how likely a model is right, by the confidence of another; positions."""
        k = self.confidence.shape[1]
        number = np.zeros((k, k), int)
        for pair, (i, j) in enumerate(pairs(k)):
            number[i, j] = number[j, i] = pair
        return self.crossed[jnp.asarray(number)[model, other]]


def candidates(rows: CandidateRows, judging: Judging) -> Candidates:
    """Every single model, and every pair at every threshold that parts the queries, judged on n queries.

    `vmap` it over resampled or masked logs.

    Args:
        rows: of the queries.
        judging: how they are judged.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> charge = jnp.array([[1.0, 14.0], [1.0, 6.0]])
    >>> rows = CandidateRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), charge)
    >>> cascades = candidates(rows, Judging())
    >>> cascades.cost.tolist(), cascades.counted.tolist()  # small, large, small → large: the second query is answered
    ([1.0, 10.0, 8.0, 11.0], [0.5, 0.0, 0.0, inf])
    """
    alone = _single_models(rows, judging)
    left, right = np.array(pairs(alone.k), int).reshape(-1, 2).T
    judged = map_entries(partial(_pair, rows, judging, alone), len(rows.confidence), (0, 0, 0))
    return together(alone, jax.tree.map(jnp.ravel, judged(left, right, rows.crossed)), xp=jnp)


def _single_models(rows: CandidateRows, judging: Judging) -> Candidates:
    """(k,) each model alone: by its labels as they are, but for refusals."""
    cost, error = _bills(rows), _errors(rows)
    refusal, abstention, always = None, jnp.zeros_like(cost), jnp.full_like(cost, ALWAYS_ANSWER)
    if judging.refusal is not None:
        refusal, gain, abstention = refusals(rows, judging)
        error = error - gain
    models = jnp.arange(len(cost))
    return Candidates(
        k=len(cost),
        first=models,
        second=models,
        third=models,
        threshold=always,
        fallback=always,
        error=error,
        cost=cost,
        counted=error,
        abstention=abstention,
        refusal=refusal,
    )


def refusals(rows: CandidateRows, judging: Judging) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(the confidence up to which each model refuses alone, what that gains, the share refused), each (k,).

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> rows = CandidateRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), jnp.array([1.0, 10.0]))
    >>> [round(float(figure[0]), 3) for figure in refusals(rows, Judging(refusal=jnp.array(0.8)))]
    [0.55, 0.344, 0.5]
    """
    worth = jnp.asarray(judging.refusal, rows.confidence.dtype)
    right = alone_right(rows, judging)
    level, gain, share = jax.vmap(refuse_alone, (1, 1, 1, None))(rows.confidence, right, rows.present, worth)
    return level, gain, share


def _errors(rows: CandidateRows) -> jax.Array:
    """(k,) how often each model errs; inf for one that has not answered."""
    answered = rows.present.sum(0)
    return jnp.where(answered > 0, 1 - divide((rows.present * rows.correct).sum(0), answered, 0.5), jnp.inf)


def _bills(rows: CandidateRows) -> jax.Array:
    """(k,) the mean of what the answers of each model cost; of one without answers, as charged."""
    count = rows.present.sum(0)
    mean = jnp.where(rows.present, rows.charges, 0.0).sum(0) / jnp.maximum(count, 1)
    return jnp.where(count > 0, mean, rows.charges.mean(0))


def alone_right(rows: CandidateRows, judging: Judging) -> jax.Array:
    """(n, k) how likely each answer is right, its label blended with what is expected of it."""
    by_model = jax.vmap(partial(centred, xp=jnp), 1, 1)
    expected = by_model(rows.confidence, rows.correct.astype(rows.confidence.dtype), rows.present)
    return judging.blend.label * rows.correct + (1 - judging.blend.label) * expected


def _pair(
    rows: CandidateRows, judging: Judging, alone: Candidates, left: Any, right: Any, crossed: jax.Array
) -> Candidates:
    """One pair of models at M thresholds: queries below a cut are passed on. `crossed` (n,): what the first tells."""
    present = rows.present[:, left] & rows.present[:, right]
    labels, blend = rows.correct.astype(rows.confidence.dtype), judging.blend
    confidence, beyond = rows.confidence[:, left], rows.confidence[:, right]
    first_label, second_label = labels[:, left], labels[:, right]
    by_itself, by_second, by_first = (
        centred(expected, label, present, jnp)
        for expected, label in ((confidence, first_label), (beyond, second_label), (crossed, second_label))
    )
    first = blend.label * first_label + (blend.calibrated + blend.crossed) * by_itself
    second = blend.label * second_label + blend.calibrated * by_second + blend.crossed * by_first
    refuses, refusal = jnp.zeros_like(present), None
    if alone.refusal is not None:
        refusal = alone.refusal[right]
        refuses, worth = beyond <= refusal, jnp.asarray(judging.refusal, second.dtype)
        second, second_label = (jnp.where(refuses, worth, of) for of in (second, second_label))

    cuts = spread_cuts(confidence, present, MOST_THRESHOLDS)
    passed_on, everyone = partial(cuts.means_below, present=present), partial(cuts.mean, present=present)
    wrong = everyone(1 - first_label, empty=1.0)
    places, level = jnp.zeros_like(cuts.last), jnp.zeros_like(cuts.threshold)
    return Candidates(
        k=alone.k,
        first=places + left,
        second=places + right,
        third=places + right,
        threshold=cuts.threshold,
        fallback=level + ALWAYS_ANSWER,
        error=jnp.where(cuts.parts, wrong - passed_on(second - first), jnp.inf),
        cost=alone.cost[left] + passed_on(rows.charges[:, right]),
        counted=jnp.where(cuts.parts, wrong - passed_on(second_label - first_label), jnp.inf),
        abstention=passed_on(refuses.astype(second.dtype)),
        refusal=None if refusal is None else level + refusal,
    )
