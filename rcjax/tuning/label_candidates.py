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
from numpy.typing import ArrayLike

from rcjax._core.batching import map_entries, part
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, Policies
from rcjax.model.calibration import Calibrator, calibrate_all
from rcjax.model.pairs import pairs
from rcjax.tuning.judging import AS_USUAL, Judging, centred, cross_calibrate
from rcjax.tuning.label_refusals import Cuts, refuse_alone, spread_cuts

#: Thresholds tried for each pair, at most.
MOST_THRESHOLDS = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Policies on trial, C of them: every single model, and every pair at every threshold that parts the queries."""

    first: jax.Array  # (C,) the model asked first
    second: jax.Array  # (C,) the model asked where it is unsure; itself where none is
    threshold: jax.Array  # (C,) calibrated confidence up to which it is; ALWAYS_ANSWER for a single model
    error: jax.Array  # (C,) estimated, a refusal at its price; inf for a threshold that parts no queries
    cost: jax.Array  # (C,) of the queries, each at what its path costs
    counted: jax.Array  # (C,) the error by the labels alone
    refused: jax.Array | None = None  # (C,) confidence up to which the last model refuses; None: none does
    abstention: jax.Array | None = None  # (C,) share of the queries that get no answer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CandidateRows:
    """What is known of n queries, and P pairs of k models."""

    confidence: Any  # (n, k) calibrated
    crossed: Any  # (P, n) of `cross_calibrate`
    correct: Any  # (n, k) whether the answer is right
    present: Any  # (n, k) whether there is an answer and the query is to count
    charge: Any  # (n, k) money of each answer, or (k,) of any

    @classmethod
    def of(
        cls, calibrators: Calibrator, rows: tuple[jax.Array, jax.Array, jax.Array], charge: jax.Array
    ) -> "CandidateRows":
        """With what their own labels and raw confidences tell of one model by another; arguments as of `judge`."""
        logprob, correct, present = rows
        crossed = cross_calibrate(logprob, correct, present, calibrators.transform)
        return cls(calibrate_all(calibrators, logprob, present), crossed, correct, present, charge)

    def of_pair(self, left: Any, right: Any, crossed: Any, judging: Judging, refused: Any = None) -> "_Pair":
        """What is known of one pair.

        Args:
            left, right: the positions of its models.
            crossed: (n,) what the first tells of the second.
            judging: how policies are judged.
            refused: () the confidence up to which the second refuses; None: it does not.
        """
        present = self.present[:, left] & self.present[:, right]
        charge = jnp.broadcast_to(self.charge, self.confidence.shape)
        labels, blend = self.correct.astype(self.confidence.dtype), judging.blend
        first_label, second_label = labels[:, left], labels[:, right]
        first = centred(self.confidence[:, left], first_label, present, jnp)
        second = centred(self.confidence[:, right], second_label, present, jnp)
        second_by_first = centred(crossed, second_label, present, jnp)
        blended = blend.label * second_label + blend.calibrated * second + blend.crossed * second_by_first
        refuses = None
        if refused is not None:
            refuses = self.confidence[:, right] <= refused
            worth = jnp.asarray(judging.refusal, blended.dtype)
            blended, second_label = (jnp.where(refuses, worth, of) for of in (blended, second_label))
        return _Pair(
            confidence=self.confidence[:, left],
            first=blend.label * first_label + (blend.calibrated + blend.crossed) * first,
            second=blended,
            first_label=first_label,
            second_label=second_label,
            second_charge=charge[:, right],
            present=present,
            refuses=refuses,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Pair:
    """What is known of n queries and two models."""

    confidence: jax.Array  # (n,) of the first
    first: jax.Array  # (n,) how likely the first is right, its label blended with what is expected
    second: jax.Array  # (n,) likewise; what a refusal is worth, where it refuses
    first_label: jax.Array  # (n,)
    second_label: jax.Array  # (n,) likewise
    second_charge: jax.Array  # (n,) money of the second
    present: jax.Array  # (n,) whether the query counts
    refuses: jax.Array | None  # (n,) whether the second refuses; None: it never does


def candidates(rows: CandidateRows, judging: Judging) -> Candidates:
    """Every single model and pair, judged on n queries. `vmap` it over resampled or masked logs.

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
    left, right = np.array(pairs(rows.confidence.shape[1]), int).reshape(-1, 2).T

    def judged(left: jax.Array, right: jax.Array, crossed: jax.Array, *refused: jax.Array) -> dict[str, Any]:
        return _at_thresholds(rows.of_pair(left, right, crossed, judging, *refused))

    refused = (alone["refused"][right],) if "refused" in alone else ()
    tried = map_entries(judged, len(rows.confidence), (0,) * (3 + len(refused)))(left, right, rows.crossed, *refused)
    tried["cost"] += alone["cost"][left][:, None]
    if refused:
        tried["refused"] = jnp.broadcast_to(refused[0][:, None], tried["cost"].shape)
    return _in_a_row(alone, tried)


def _single_models(rows: CandidateRows, judging: Judging) -> dict[str, jax.Array]:
    """Figures (k,) of each model alone, as fields of `Candidates`: by its labels as they are, but for refusals."""
    cost, error, refusing = _bills(rows), _errors(rows), {}
    ends = jnp.full_like(cost, ALWAYS_ANSWER)
    if judging.refusal is not None:
        level, gain, share = refusals(rows, judging)
        error, refusing = error - gain, {"refused": level, "abstention": share}
    return {"threshold": ends, "error": error, "counted": error, "cost": cost, **refusing}


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


def _in_a_row(alone: dict[str, jax.Array], tried: dict[str, jax.Array]) -> Candidates:
    """The single models, figures (k,), and behind them the pairs at their thresholds, figures (P, M)."""
    k, count = len(alone["threshold"]), tried["threshold"].shape[1]
    left, right = np.array(pairs(k), int).reshape(-1, 2).T
    return Candidates(
        first=jnp.concatenate([np.arange(k), np.repeat(left, count)]),
        second=jnp.concatenate([np.arange(k), np.repeat(right, count)]),
        **{name: jnp.concatenate([alone[name], values.reshape(-1)]) for name, values in tried.items()},
    )


def _errors(rows: CandidateRows) -> jax.Array:
    """(k,) how often each model errs; inf for one that has not answered."""
    answered = rows.present.sum(0)
    return jnp.where(answered > 0, 1 - divide((rows.present * rows.correct).sum(0), answered, 0.5), jnp.inf)


def _bills(rows: CandidateRows) -> jax.Array:
    """(k,) the mean of what the answers of each model cost; of one without answers, as charged."""
    charge = jnp.broadcast_to(rows.charge, rows.confidence.shape)
    count = rows.present.sum(0)
    mean = jnp.where(rows.present, charge, 0.0).sum(0) / jnp.maximum(count, 1)
    return jnp.where(count > 0, mean, charge.mean(0))


def alone_right(rows: CandidateRows, judging: Judging) -> jax.Array:
    """(n, k) how likely each answer is right, its label blended with what is expected of it."""
    by_model = jax.vmap(partial(centred, xp=jnp), 1, 1)
    expected = by_model(rows.confidence, rows.correct.astype(rows.confidence.dtype), rows.present)
    return judging.blend.label * rows.correct + (1 - judging.blend.label) * expected


def _at_thresholds(pair: _Pair) -> dict[str, Any]:
    """What is known of one pair at M thresholds, (M,) each: the fields of `Candidates`, its cost that of the second."""
    cuts = spread_cuts(pair.confidence, pair.present, MOST_THRESHOLDS)
    figures = _at_cuts(pair, cuts)
    if pair.refuses is not None:
        figures["abstention"] = cuts.means_below(pair.refuses.astype(pair.second.dtype), pair.present)
    return figures


def _at_cuts(pair: _Pair, cuts: Cuts) -> dict[str, jax.Array]:
    """Figures of one pair at M thresholds: queries below a cut are passed on; the cost is that of the second model."""
    passed_on, everyone = partial(cuts.means_below, present=pair.present), partial(cuts.mean, present=pair.present)
    wrong = everyone(1 - pair.first_label, empty=1.0)
    return {
        "threshold": cuts.threshold,
        "error": jnp.where(cuts.parts, wrong - passed_on(pair.second - pair.first), jnp.inf),
        "counted": jnp.where(cuts.parts, wrong - passed_on(pair.second_label - pair.first_label), jnp.inf),
        "cost": passed_on(pair.second_charge),
    }


def judge(
    calibrators: Calibrator, rows: tuple[jax.Array, jax.Array, jax.Array], charge: jax.Array, judging: Judging
) -> Candidates:
    """`candidates` on n queries, with what their own labels and raw confidences tell of one model by another.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present), each (n, k): raw log-probabilities, whether the answer is right, and whether
            there is one and the query is to count.
        charge: (n, k) money of each answer, or (k,) of any.
        judging: how they are judged.
    """
    return candidates(CandidateRows.of(calibrators, rows, charge), judging)


_judge_filled = compiled(judge, runs="long")


def judge_log(
    calibrators: Calibrator,
    rows: tuple[ArrayLike, ArrayLike, ArrayLike],
    charge: ArrayLike,
    judging: Judging = AS_USUAL,
) -> Candidates:
    """`judge`, compiled for one log at a time, so that folds, replicates and deals share it, and logs of like size.

    Args:
        calibrators, rows, charge, judging: as of `judge`.
    """
    money = fill_up(charge)[0] if np.ndim(charge) > 1 else charge
    return _judge_filled(calibrators, tuple(fill_up(*rows)), money, judging)


def as_cascades(trial: Candidates, indices: Any, k: int, xp: Any = jnp) -> Policies:
    """(L,) some of the candidates, as policies over k models.

    Args:
        trial: all candidates.
        indices: (L,) which of them.
        k: the number of models.
        xp: jax.numpy, or numpy outside of a jitted function.
    """
    chosen = part(trial, indices)
    everyone = np.arange(k)
    is_first, is_second = (model[:, None] == everyone for model in (chosen.first, chosen.second))
    alone = xp.where(is_second, ALWAYS_ANSWER, NEVER_ANSWER).astype(chosen.threshold.dtype)
    thresholds, members = xp.where(is_first, chosen.threshold[:, None], alone), is_first | is_second
    if chosen.refused is not None:
        refusals = xp.where(is_second, chosen.refused[:, None], NEVER_REFUSE)
        return Policies.of_cascades(xp.maximum(thresholds, refusals), members, refusals, xp)
    return Policies.of_cascades(thresholds, members, xp=xp)
