"""Single models and pairs of models, judged on the queries of the log itself: no copula, and labels with less noise.

A pair that asks model i and, where Φ_i ≤ φ, then model j, errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

Labels are averaged with what is expected of them (`judging`). A pair costs what its path costs on each of the queries:
those that are passed on may be longer than others. Where many queries have one confidence, a threshold parts them: a
share of them is passed on (`Splits`).

Where models may refuse to answer, a single model does so up to a confidence, and so does the second of a pair. A
refusal counts as right with probability R = 1 − (what it costs, in errors).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import map_entries
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_REFUSE
from rcjax.model.calibration import Calibrator, calibrate_all
from rcjax.model.pairs import pairs
from rcjax.tuning.judging import AS_USUAL, ATOM, Judging, centred, cross_calibrate
from rcjax.tuning.label_refusals import MOST_CUTS, Cuts, refuse_alone, spread_cuts

#: Thresholds tried for each pair, at most.
MOST_THRESHOLDS = 400


_MOST_REFUSALS = 24  # tried for the second model of each pair


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Policies on trial, C of them: every single model, and every pair at every threshold that parts the queries."""

    first: jax.Array  # (C,) the model asked first
    second: jax.Array  # (C,) the model asked where it is unsure; itself where none is
    threshold: jax.Array  # (C,) calibrated confidence up to which it is; ALWAYS_ANSWER for a single model
    error: jax.Array  # (C,) estimated, a refusal at its price; inf for a threshold that parts no queries
    cost: jax.Array  # (C,) of the queries, each at what its path costs
    cost_se: jax.Array  # (C,) standard error of the cost
    counted: jax.Array  # (C,) the error by the labels alone
    refused: jax.Array | None = None  # (C,) confidence up to which the last model refuses; None: none does
    abstention: jax.Array | None = None  # (C,) share of the queries that get no answer
    above: jax.Array | None = None  # (C,) confidence above which a share is passed on, up to the threshold
    share: jax.Array | None = None  # (C,) that share; None for both: no threshold parts queries of one confidence


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

    def of_pair(self, left: Any, right: Any, crossed: Any, judging: Judging) -> "_Pair":
        """What is known of one pair.

        Args:
            left, right: the positions of its models.
            crossed: (n,) what the first tells of the second.
            judging: how policies are judged.
        """
        present = self.present[:, left] & self.present[:, right]
        charge = jnp.broadcast_to(self.charge, self.confidence.shape)
        labels, blend = self.correct.astype(self.confidence.dtype), judging.blend
        first_label, second_label = labels[:, left], labels[:, right]
        first = centred(self.confidence[:, left], first_label, present, jnp)
        second = centred(self.confidence[:, right], second_label, present, jnp)
        second_by_first = centred(crossed, second_label, present, jnp)
        return _Pair(
            confidence=self.confidence[:, left],
            second_confidence=self.confidence[:, right],
            first=blend.label * first_label + (blend.calibrated + blend.crossed) * first,
            second=blend.label * second_label + blend.calibrated * second + blend.crossed * second_by_first,
            first_label=first_label,
            second_label=second_label,
            first_charge=charge[:, left],
            second_charge=charge[:, right],
            present=present,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Pair:
    """What is known of n queries and two models."""

    confidence: jax.Array  # (n,) of the first
    second_confidence: jax.Array  # (n,)
    first: jax.Array  # (n,) how likely the first is right, its label blended with what is expected
    second: jax.Array  # (n,)
    first_label: jax.Array  # (n,)
    second_label: jax.Array  # (n,)
    first_charge: jax.Array  # (n,) money
    second_charge: jax.Array  # (n,)
    present: jax.Array  # (n,) whether the query counts


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
    alone = _single_models(rows)
    tried = _pairs(rows, judging, alone["cost"], partial(_at_thresholds, split=judging.split))
    if judging.split:
        alone |= {"above": alone["threshold"], "share": jnp.ones_like(alone["threshold"])}
    return _in_a_row(alone, tried)


def _single_models(rows: CandidateRows) -> dict[str, jax.Array]:
    """Figures (k,) of each model alone, as fields of `Candidates`: by its labels as they are."""
    cost, cost_se = _bills(rows)
    error = _errors(rows)
    ends = jnp.full_like(cost, ALWAYS_ANSWER)
    return {"threshold": ends, "error": error, "counted": error, "cost": cost, "cost_se": cost_se}


def _pairs(
    rows: CandidateRows, judging: Judging, cost: jax.Array, judge_pair: Callable[[_Pair], dict[str, jax.Array]]
) -> dict[str, jax.Array]:
    """Figures (P, …) of each pair, as fields of `Candidates`, judged one at a time.

    Args:
        rows: of the queries.
        judging: how they are judged.
        cost: (k,) of the models alone: what the first of a pair costs.
        judge_pair: the figures of one pair, whose cost is that of the second alone.
    """
    left, right = np.array(pairs(rows.confidence.shape[1]), int).reshape(-1, 2).T

    def judged(left: jax.Array, right: jax.Array, crossed: jax.Array) -> dict[str, jax.Array]:
        return judge_pair(rows.of_pair(left, right, crossed, judging))

    tried = map_entries(judged, len(rows.confidence), (0, 0, 0))(left, right, rows.crossed)
    return tried | {"cost": tried["cost"] + cost[left][:, None]}


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


def _bills(rows: CandidateRows) -> tuple[jax.Array, jax.Array]:
    """(mean, standard error), each (k,), of what the answers of each model cost; of one without answers, as charged."""
    charge = jnp.broadcast_to(rows.charge, rows.confidence.shape)
    count = rows.present.sum(0)
    mean = jnp.where(rows.present, charge, 0.0).sum(0) / jnp.maximum(count, 1)
    mean = jnp.where(count > 0, mean, charge.mean(0))
    spread = jnp.where(rows.present, (charge - mean) ** 2, 0.0).sum(0)
    return mean, jnp.sqrt(spread) / jnp.maximum(count, 1)


def refusing_candidates(rows: CandidateRows, lam: jax.Array, judging: Judging) -> Candidates:
    """Every single model and pair where models may refuse to answer, for each λ: (L, C).

    A single model refuses up to where that gains most. Of a pair the second refuses up to where the pair is best at the
    λ, with the threshold that suits it; with this refusal the pair stands there at every threshold.

    Args:
        rows: of the queries.
        lam: (L,) in errors per unit of money.
        judging: how they are judged, with what a refusal is worth.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> rows = CandidateRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), jnp.array([1.0, 10.0]))
    >>> judged = refusing_candidates(rows, jnp.array([1.0]), Judging(refusal=jnp.array(0.8)))
    >>> small = [round(float(figure[0, 0]), 3) for figure in (judged.error, judged.abstention, judged.refused)]
    >>> small                                              # refuses one of two queries, and is right on the other
    [0.156, 0.5, 0.55]
    """
    assert judging.refusal is not None
    worth = jnp.asarray(judging.refusal, rows.confidence.dtype)
    level, gain, share = jax.vmap(refuse_alone, (1, 1, 1, None))(
        rows.confidence, alone_right(rows, judging), rows.present, worth
    )
    alone = _single_models(rows)
    error = alone["error"] - gain
    alone |= {"error": error, "counted": error, "refused": level, "abstention": share}
    tried = _pairs(rows, judging, alone["cost"], partial(_at_refusals, worth=worth))

    def at(price: jax.Array) -> Candidates:
        loss = tried["error"] + price * tried["cost"][:, None]
        best = loss.min(-1).argmin(-1)[:, None, None]
        chosen = {
            name: jnp.take_along_axis(tried[name], best, axis=1)[:, 0] for name in ("error", "abstention", "refused")
        }
        return _in_a_row(alone, tried | chosen | {"counted": chosen["error"]})

    return jax.vmap(at)(lam)


def alone_right(rows: CandidateRows, judging: Judging) -> jax.Array:
    """(n, k) how likely each answer is right, its label blended with what is expected of it."""
    by_model = jax.vmap(partial(centred, xp=jnp), 1, 1)
    expected = by_model(rows.confidence, rows.correct.astype(rows.confidence.dtype), rows.present)
    return judging.blend.label * rows.correct + (1 - judging.blend.label) * expected


def _at_thresholds(pair: _Pair, split: bool) -> dict[str, Any]:
    """What is known of one pair at M thresholds, (M,) each: the fields of `Candidates`, its cost that of the second."""
    cuts = spread_cuts(pair.confidence, pair.present, MOST_THRESHOLDS, split=ATOM if split else None)
    figures = _at_cuts(pair, cuts)
    return figures | {"above": cuts.above, "share": cuts.share} if split else figures


def _at_refusals(pair: _Pair, worth: jax.Array) -> dict[str, jax.Array]:
    """The same where the second model refuses up to S confidences: `error`, `abstention`, `refused` are (S, M)."""
    cuts = spread_cuts(pair.confidence, pair.present, MOST_CUTS)
    others = spread_cuts(pair.second_confidence, pair.present, _MOST_REFUSALS)
    levels = jnp.concatenate([jnp.full_like(others.threshold, NEVER_REFUSE, shape=1), others.threshold])
    usable = jnp.concatenate([jnp.ones(1, bool), others.parts])

    def at(level: jax.Array, usable: jax.Array) -> dict[str, jax.Array]:
        refuses = pair.second_confidence <= level
        figures = _at_cuts(dataclasses.replace(pair, second=jnp.where(refuses, worth, pair.second)), cuts)
        share = cuts.means_below(refuses.astype(level.dtype), pair.present)
        return figures | {
            "error": jnp.where(usable, figures["error"], jnp.inf),
            "abstention": share,
            "refused": jnp.broadcast_to(level, share.shape),
        }

    same = dict.fromkeys(("threshold", "counted", "cost", "cost_se"))
    return jax.vmap(at, out_axes=same | dict.fromkeys(("error", "abstention", "refused"), 0))(levels, usable)


def _at_cuts(pair: _Pair, cuts: Cuts) -> dict[str, jax.Array]:
    """Figures of one pair at M thresholds: queries below a cut are passed on; the cost is that of the second model."""
    passed_on, everyone = partial(cuts.means_below, present=pair.present), partial(cuts.mean, present=pair.present)
    first, second = pair.first_charge, pair.second_charge
    cost = passed_on(second)
    # The mean and the mean square of what a query costs: of the first model always, of the second if passed on.
    mean = everyone(first) + cost
    squares = everyone(first**2) + passed_on(second**2 + 2 * first * second)
    wrong = everyone(1 - pair.first_label, empty=1.0)
    return {
        "threshold": cuts.threshold,
        "error": jnp.where(cuts.parts, wrong - passed_on(pair.second - pair.first), jnp.inf),
        "counted": jnp.where(cuts.parts, wrong - passed_on(pair.second_label - pair.first_label), jnp.inf),
        "cost": cost,
        "cost_se": jnp.sqrt(divide(jnp.maximum(squares - mean**2, 0.0), cuts.count)),
    }


def judge(
    calibrators: Calibrator,
    rows: tuple[jax.Array, jax.Array, jax.Array],
    charge: jax.Array,
    lam: jax.Array | None,
    judging: Judging,
) -> Candidates:
    """`candidates` on n queries, with what their own labels and raw confidences tell of one model by another.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present), each (n, k): raw log-probabilities, whether the answer is right, and whether
            there is one and the query is to count.
        charge: (n, k) money of each answer, or (k,) of any.
        lam: (L,) for `refusing_candidates`; None where nobody may refuse.
        judging: how they are judged.
    """
    calibrated = CandidateRows.of(calibrators, rows, charge)
    if judging.refusal is None:
        return candidates(calibrated, judging)
    assert lam is not None
    return refusing_candidates(calibrated, lam, judging)


_judge_filled = compiled(judge, runs="long")


def judge_log(
    calibrators: Calibrator,
    rows: tuple[ArrayLike, ArrayLike, ArrayLike],
    charge: ArrayLike,
    lam: ArrayLike | None = None,
    judging: Judging = AS_USUAL,
) -> Candidates:
    """`judge`, compiled for one log at a time, so that folds, replicates and deals share it, and logs of like size.

    Args:
        calibrators, rows, charge, lam, judging: as of `judge`.
    """
    money = fill_up(charge)[0] if np.ndim(charge) > 1 else charge
    prices = None if judging.refusal is None else lam  # else the programme would be one for each number of λ
    return _judge_filled(calibrators, tuple(fill_up(*rows)), money, prices, judging)
