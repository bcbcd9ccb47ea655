"""Cross-validation of the choice of policies: each of five folds is answered by policies chosen without it.

Calibrators and policies are chosen on the other four folds. Two settings come from the whole log: the blending weights
(`search`), and each model's list of stated values. Three nested candidate sets are compared: single models; with
pairs; with agreement policies. The losses of each set on each query give the gains of one set over another, with their
standard errors, and the optimism of each set: held-out error minus in-sample error. The more policies are searched, the
more optimistic is the in-sample error of the best policy.
"""

import dataclasses
import enum
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import Array, join, map_in_threads, pad_to_size_class
from rcjax._core.compilation import compiled
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibrated_models import FittedModel, refit_calibrators
from rcjax.model.calibration import Calibrator, calibrate_rows
from rcjax.model.label_outcomes import (
    FOLDS,
    corrected_log,
    deal_folds,
    expected_log,
    expected_outcomes_by_fold,
    is_fully_labelled,
)
from rcjax.policy.ladder import position_at
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import LossTerms, Policies, lam_range, position_weights, safe_log
from rcjax.tuning.candidate_scores import (
    Blending,
    CalibratedRows,
    TrainingRows,
    score_candidates,
    split_by_agreement,
)
from rcjax.tuning.candidate_table import RESAMPLED_RUNGS, Candidates
from rcjax.tuning.replaying.walk import loss_terms_on_log, walk

#: Numbers of λ and of budgets for which candidate sets are compared.
N_LAM, BUDGETS = 40, 24

#: Least gain of agreement policies, averaged over all λ, as a share of the error + λ·cost of pairs.
_MIN_AGREEMENT_GAIN = 0.002

#: Number of standard errors below 0 at which the held-out labels contradict a gain.
_CONTRADICTION = 3.0

#: Most queries that policies are compared on: gains that only more queries would show are too small to matter.
MAX_QUERIES = 50_000


#: Most queries that blending weights and seconds are estimated on, and that a bootstrap tunes again by default: more
#: queries would not change a choice.
ENOUGH_QUERIES = 5_000


def draw_enough(rows: np.ndarray) -> np.ndarray:
    """Draw at most `ENOUGH_QUERIES` of some rows at random, with a fixed seed: (m,) in the order of the rows.

    >>> draw_enough(np.arange(3)).tolist(), len(draw_enough(np.arange(6_000)))
    ([0, 1, 2], 5000)
    """
    if len(rows) <= ENOUGH_QUERIES:
        return rows
    return np.sort(np.random.default_rng(0).permutation(rows)[:ENOUGH_QUERIES])


def impute_query_cost(log: Log) -> np.ndarray:
    """Return the money of each answer, or the mean money of its model if the answer is missing: (n, k).

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> bool((impute_query_cost(log) == np.asarray(log.query_cost)).all())
    True
    """
    return np.where(np.asarray(log.answered), np.asarray(log.query_cost), np.asarray(log.cost))


def make_training_rows(log: Log, included: Array | None = None, *, compare: bool = True) -> TrainingRows:
    """Take the columns that candidates are scored by from a log; without `compare`, its answers are not compared.

    `included` (n, k) marks the answers that count; None: all.
    """
    answer, counted = log.answer if compare else None, log.answered if included is None else included
    return TrainingRows(log.logprob, log.correct, counted, answer, log.signal_cost, impute_query_cost(log))


def held_out_confidence(log: Log, model: FittedModel, seed: int = 0) -> np.ndarray:
    """Calibrate each of five folds by the others: (n, k) held-out calibrated confidences; NaN for no answer.

    `model` was fitted to the log.
    """
    fold = deal_folds(log.queries, log.complete, seed)
    confidence = np.full_like(log.logprob, np.nan)
    for number, right in enumerate(expected_outcomes_by_fold(log, fold)):
        out = fold == number
        answered = np.asarray(log.answered) & ~out[:, None]
        calibrators = refit_calibrators(model.calibrators, (log.logprob, right, answered))
        confidence[out] = np.asarray(calibrate_rows(calibrators, log.logprob))[out]
    return np.where(np.asarray(log.answered), confidence, np.nan)


def sample_queries(log: Log, seed: int) -> Log:
    """Take at most 50,000 queries of a log at random, queries with labels before queries without."""
    if log.n_queries <= MAX_QUERIES:
        return log
    order = np.random.default_rng(seed).permutation(log.n_queries)
    labelled_first = np.argsort(~log.labelled[order].any(axis=1), kind="stable")
    return log.take(np.sort(order[labelled_first][:MAX_QUERIES]))


class CandidateSet(enum.IntEnum):
    """Nested sets of candidates: each has the policies of the set before it, and more."""

    SINGLE = 0
    """Single models."""
    PAIRS = 1
    """With pairs of models, and chains."""
    AGREEMENT = 2
    """With agreement policies, where the log has answers."""


class Targets(NamedTuple):
    """T = G + B targets that policies are chosen for, in this order; numpy arrays."""

    lam: np.ndarray
    """(G,) λ, in errors per unit of money; the best policy has the least error + λ·cost."""
    budgets: np.ndarray
    """(B,) budgets, in money per query; the best policy has the least error within the budget."""


class ChosenPolicies(NamedTuple):
    """The policies chosen for T targets, as mixtures of R rungs; numpy arrays."""

    rungs: Candidates
    """The rungs."""
    weights: np.ndarray
    """(T, R) share of the queries that goes by each rung."""

    @property
    def penalty(self) -> np.ndarray:
        """(T,) in-sample errors, and abstentions at their price."""
        return self.weights @ self.rungs.penalty

    def padded(self) -> "ChosenPolicies":
        """Repeat the last rung, with the weight 0, until there are `RESAMPLED_RUNGS`."""
        count = len(self.rungs.cost)
        weights = np.pad(self.weights, ((0, 0), (0, max(RESAMPLED_RUNGS - count, 0))))
        return ChosenPolicies(self.rungs.padded(), weights)


def choose_mixtures(table: Candidates, targets: Targets) -> ChosenPolicies:
    """Choose a policy for each target: a corner of the hull for a λ, a mixture of two corners for a budget.

    >>> models = dict.fromkeys(("first", "second", "third"), np.arange(3))
    >>> zeros = dict.fromkeys(("threshold", "fallback", "abstention"), np.zeros(3))
    >>> table = Candidates(3, **models, **zeros, penalty=np.array([0.3, 0.2, 0.1]), cost=np.array([1.0, 2.0, 9.0]))
    >>> choose_mixtures(table, Targets(np.array([0.05]), np.array([1.5]))).weights.tolist()
    [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
    """
    rungs = table.rungs()
    by_budget = [position_at(rungs.cost.tolist(), budget) for budget in targets.budgets.tolist()]
    positions = np.concatenate([rungs.loss(targets.lam).argmin(1), by_budget])
    return ChosenPolicies(rungs, position_weights(positions, len(rungs.cost)))


def choose_single_candidates(table: Candidates, targets: Targets) -> ChosenPolicies:
    """Choose one candidate for each target, without mixtures; the cheapest if no candidate is within a budget."""
    fits = table.cost <= targets.budgets[:, None]
    within = np.where(fits.any(1), np.where(fits, table.penalty, np.inf).argmin(1), table.cost.argmin())
    best = np.concatenate([table.loss(targets.lam).argmin(1), within])
    return ChosenPolicies(table, position_weights(best, len(table.cost)))


class Gain(NamedTuple):
    """The gain of one policy or candidate set over another on held-out queries: numbers, or numpy arrays of several."""

    mean: Any
    """Mean over the queries."""
    se: Any
    """Standard error of the mean."""

    @classmethod
    def of(cls, expected: np.ndarray, corrected: np.ndarray) -> "Gain":
        """Compute the mean of m gains (…, m) by expected outcomes, and its standard error by corrected outcomes.

        >>> gains = np.array([0.0, 2.0, 1.0, 1.0])
        >>> float(Gain.of(gains, gains).mean)
        1.0
        """
        return cls(expected.mean(-1), corrected.std(-1, ddof=1) / np.sqrt(corrected.shape[-1]))

    def at(self, *index: int) -> "Gain":
        """Return the gain at an index of the arrays."""
        return Gain(float(self.mean[index]), float(self.se[index]))


class SetGain(NamedTuple):
    """The gains of one candidate set over another, in error + λ·cost at G values of λ."""

    by_lam: Gain
    """(G,) gain at each λ, in errors."""
    overall: Gain
    """() gain as a share of the rival's error + λ·cost, averaged over the λ."""
    by_labels: Gain
    """() the same as `overall`, by the held-out labels alone."""

    @property
    def is_admitted(self) -> bool:
        """Whether the candidate set gains enough to be used, and the held-out labels do not contradict the gain.

        A wrong admission of agreement policies costs little, as single models and pairs stay in the table.
        """
        is_plausible = self.by_labels.mean > -_CONTRADICTION * self.by_labels.se
        return bool(self.overall.mean > _MIN_AGREEMENT_GAIN and is_plausible)


@dataclasses.dataclass(frozen=True)
class CrossValidation:
    """Cross-validated gains and optimism of the first S sets of `CandidateSet`."""

    targets: Targets  # G values of λ and B budgets, each rising
    pair_gains: SetGain  # of pairs over single models
    agreement_gains: SetGain | None  # of agreement policies over pairs; None: the log has no answers
    gain_at_budget: Gain  # (S, B) error of the best single model minus error of the candidate set
    set_optimism: np.ndarray  # (S,) optimism: held-out error minus in-sample error, mean over budgets
    blending: Blending  # the blending weights that every candidate was scored with

    @property
    def uses_agreement(self) -> np.ndarray:
        """(G,) bool: the λ at which agreement policies are used.

        Agreement policies are used at λ if they gain there and on average over all λ: some of 40 λ gain by chance.
        """
        if self.agreement_gains is None or not self.agreement_gains.is_admitted:
            return np.zeros(len(self.targets.lam), bool)
        return self.agreement_gains.by_lam.mean > 0

    def excess_optimism(self, candidate_set: CandidateSet) -> float:
        """Return the optimism of cascades minus the optimism of single models, 0 at least; the mean over all budgets.

        `select_frontier` adds the result to the errors of cascades; errors of single models are counted by labels.
        Abstention thresholds get no correction: on fresh queries the penalty was 0.1 ± 0.2 points below the in-sample
        penalty (300 queries, four logs, abstentions at 0.3).
        """
        return max(float(self.set_optimism[self._row(candidate_set)] - self.set_optimism[CandidateSet.SINGLE]), 0.0)

    def _row(self, candidate_set: CandidateSet) -> int:
        """Return the row of a set; if the log lacks the set, of the largest set that it has."""
        return min(candidate_set, len(self.set_optimism) - 1)

    def gain(self, candidate_set: CandidateSet, target: Target, bills: np.ndarray) -> Gain:
        """Return the held-out gain of cascades over the best single model at a budget, in errors, or at a price.

        The gain at a price is in error + λ·cost. `bills` (k,) are the dollars per query of each single model.
        """
        if target.name == "budget":
            return self.gain_at_budget.at(self._row(candidate_set), self.nearest_budget(target.value, bills))
        index = int(self.nearest_lam(target.lam))
        of_pairs = self.pair_gains.by_lam.at(index)
        if self.agreement_gains is None or candidate_set < CandidateSet.AGREEMENT:
            return of_pairs
        of_agreement = self.agreement_gains.by_lam.at(index)
        return Gain(of_pairs.mean + of_agreement.mean, math.hypot(of_pairs.se, of_agreement.se))

    def nearest_budget(self, budget: float, bills: np.ndarray) -> int:
        """Return the index of the budget of cross-validation nearest to a budget, on the logarithmic scale.

        Among the budgets that afford the same single models, of `bills` (k,), return the nearest; if there is none, the
        nearest of all. (The gain of a cascade drops where a budget reaches the bill of the next model.)
        """
        grid, here, bills = (safe_log(amount) for amount in (self.targets.budgets, budget, bills))
        same_models = (bills <= grid[:, None] + 1e-9).sum(1) == (bills <= here + 1e-9).sum()
        return int(np.where(same_models | ~same_models.any(), np.abs(grid - here), np.inf).argmin())

    def nearest_lam(self, lam: Any) -> np.ndarray:
        """Return the index of the λ of cross-validation nearest to each λ, on the logarithmic scale: (…)."""
        return np.abs(safe_log(self.targets.lam) - safe_log(lam)[..., None]).argmin(-1)


class Penalties(NamedTuple):
    """Errors of m held-out queries, and abstentions at their price, (S, T, m) each.

    If every answer is labelled, the two fields hold the same array.
    """

    expected: np.ndarray
    """Penalties by expected outcomes, which give gains."""
    corrected: np.ndarray
    """Penalties by corrected outcomes, which give standard errors and optimism."""


class CrossValidatedLosses(NamedTuple):
    """Losses of m held-out queries, for the first S sets of `CandidateSet` and T targets."""

    targets: Targets
    penalty: Penalties
    """Penalties by the labels."""
    cost: np.ndarray
    """(S, T, m) cost, in money per query."""
    estimated: Penalties
    """Penalties with estimated errors in place of labels, if the log has answers; else `penalty`."""
    in_sample: np.ndarray
    """(S, T) in-sample penalty."""
    blending: Blending
    """Blending weights that candidates were scored with."""

    def optimism(self, chosen: slice) -> np.ndarray:
        """Return the optimism of each candidate set: held-out minus in-sample error, mean over some targets: (S,).

        Optimism falls as 1/n. A choice on FOLDS − 1 folds has 1/(1 − 1/FOLDS) times that of a choice on all queries, so
        the difference is scaled by 1 − 1/FOLDS.
        """
        optimism = (self.penalty.corrected[:, chosen].mean(-1) - self.in_sample[:, chosen]).mean(-1)
        return optimism * (1 - 1 / FOLDS)

    def gains(self, candidate_set: int, *, rival: int, estimated: bool = False) -> SetGain:
        """Return the gains of one candidate set over another, in error + λ·cost at every λ.

        Estimated errors are far less noisy than labels: by the labels of 300 queries a gain of 7 % has a standard error
        of 5 %, and two of three such gains would be missed.
        """
        lam = slice(len(self.targets.lam))
        cost_loss = self.targets.lam[:, None] * self.cost[:, lam]

        def loss(penalty: np.ndarray, number: int) -> np.ndarray:
            return penalty[number, lam] + cost_loss[number]

        def differences(penalties: Penalties) -> list[np.ndarray]:
            return [loss(penalty, rival) - loss(penalty, candidate_set) for penalty in penalties]

        scale = np.maximum(loss(self.penalty.expected, rival).mean(-1), np.finfo(float).tiny)[:, None]
        by_labels = differences(self.penalty)
        used = differences(self.estimated) if estimated else by_labels
        shares = ([(difference / scale).mean(-2) for difference in pair] for pair in (used, by_labels))
        return SetGain(Gain.of(*used), *(Gain.of(*pair) for pair in shares))

    def summarise(self) -> CrossValidation:
        """Summarise the losses as gains and optimism of the candidate sets."""
        at_budgets, sets = slice(len(self.targets.lam), None), len(self.cost)
        agreement_gains = None
        if sets > CandidateSet.AGREEMENT:
            agreement_gains = self.gains(CandidateSet.AGREEMENT, rival=CandidateSet.PAIRS, estimated=True)
        gains = (penalty[:1, at_budgets] - penalty[:, at_budgets] for penalty in self.penalty)
        return CrossValidation(
            self.targets,
            pair_gains=self.gains(min(CandidateSet.PAIRS, sets - 1), rival=CandidateSet.SINGLE),
            agreement_gains=agreement_gains,
            gain_at_budget=Gain.of(*gains),
            set_optimism=self.optimism(at_budgets),
            blending=self.blending,
        )


def choose_targets(log: Log) -> Targets:
    """Return λ at which policies differ, and budgets from the cheapest model's bill to 1.2 times the dearest bill."""
    cost = np.asarray(log.comparable.cost, float)
    low, high = float(np.asarray(log.comparable.single_cost, float).min()), float(cost.max())
    low = max(low, 1e-6 * high, np.finfo(float).tiny)
    return Targets(lam_range(cost, N_LAM), np.geomspace(low, 1.2 * max(high, low), BUDGETS))


#: Queries that a cross-validation replays over all its deals, and the largest number of deals: the choice among some
#: 300 queries depends on how they are dealt into folds (saving of `match` on MMLU: standard deviation 2.8 points with
#: one deal, 1.4 with eight).
_REPEATED_QUERIES, _MAX_DEALS = 2_400, 8


def cross_validate(
    log: Log, model: FittedModel, blending: Blending, abstain_price: float | None = None, seed: int = 0
) -> CrossValidatedLosses:
    """Return the losses of every candidate set on the complete queries of a log, as means over deals into folds.

    A deal holds each query out once. Logs of at most 1,200 queries get several deals, at most eight. If answers
    lack labels, mean gains are computed from expected outcomes, and errors and standard errors from corrected outcomes
    (`rcjax.model.label_outcomes`).

    Args:
        log: the log, with the models of `model`.
        model: the model fitted to the log.
        blending: the blending weights of labels.
        abstain_price: price of an abstention, in errors; None: models do not abstain.
        seed: seed of the deals.
    """
    deals = min(max(_REPEATED_QUERIES // log.n_queries, 1), _MAX_DEALS)
    targets = choose_targets(log)
    settings = targets, blending, abstain_price
    losses = [_cross_validate_deal(log, model, *settings, _MAX_DEALS * seed + deal) for deal in range(deals)]
    penalty, bill, estimated, in_sample = (np.mean(figures, axis=0) for figures in zip(*losses, strict=True))
    by_labels, by_estimates = (Penalties(figure[0], figure[-1]) for figure in (penalty, estimated))
    return CrossValidatedLosses(
        targets,
        penalty=by_labels,
        cost=bill,
        estimated=by_estimates,
        in_sample=in_sample,
        blending=blending,
    )


def _cross_validate_deal(
    log: Log, model: FittedModel, targets: Targets, blending: Blending, abstain_price: float | None, seed: int
) -> tuple[np.ndarray, ...]:
    """Return `penalty`, `cost`, `estimated` and `in_sample`, as in `CrossValidatedLosses`, of one deal into folds.

    The first axis of `penalty` and `estimated` holds the kinds of outcomes: expected and, if labels are missing,
    corrected.
    """
    complete = log.complete
    fold = deal_folds(log.queries, complete, seed)
    query_cost = impute_query_cost(log)
    outcomes, logs = _outcomes_by_fold(log, fold)

    def evaluate_fold(number: int) -> tuple[Array, ...]:
        calibrators, choices, estimated_wrong = _choose_on_other_folds(
            logs[number], fold == number, model.calibrators, targets, blending, abstain_price
        )
        out = complete & (fold == number)

        def replay_choice(choice: ChosenPolicies, right: Any) -> list[np.ndarray]:
            terms = loss_terms_on_log(calibrators, choice.rungs.policies(), log, right, query_cost)
            return [choice.weights @ np.asarray(figure[:, out], float) for figure in terms]

        # Axis 0: expected outcomes, then corrected outcomes; one entry if all answers are labelled. Then S sets and
        # three terms (T, m).
        terms_by_outcome = [[replay_choice(choice, right) for choice in choices] for right in outcomes]
        terms = LossTerms(*np.moveaxis(np.array(terms_by_outcome), 2, 0))
        penalty = terms.penalty(abstain_price)
        # Estimated errors take the place of labels; abstentions stay.
        estimated = penalty if estimated_wrong is None else penalty + (estimated_wrong[..., out] - terms.wrong)
        return penalty, terms.cost[0], estimated, np.stack([choice.penalty for choice in choices])

    *figures, in_sample = zip(*map_in_threads(evaluate_fold, range(FOLDS), n=log.n_queries), strict=True)
    # Sort the queries from the order of the folds back to the order of the log.
    order = np.argsort(np.argsort(fold[complete], kind="stable"))
    in_sample = np.average(in_sample, axis=0, weights=np.bincount(fold[complete], minlength=FOLDS))
    return *(np.concatenate(parts, axis=-1)[..., order] for parts in figures), in_sample


def _outcomes_by_fold(log: Log, fold: np.ndarray) -> tuple[list[Any], list[Log]]:
    """Return the kinds of outcomes that policies are judged by, and the log that each fold's policies learn from.

    The expected outcomes that a fold's policies learn from do not use its labels.
    """
    if is_fully_labelled(log):
        return [log.correct], [log] * FOLDS
    expected = expected_log(log)
    unseen = jax.device_put(expected_outcomes_by_fold(log, fold).astype(expected.correct.dtype))
    logs = [dataclasses.replace(expected, correct=right) for right in unseen]
    return [expected.correct, corrected_log(log).correct], logs


def _choose_on_other_folds(
    log: Log,
    held_out: np.ndarray,
    fitted: Calibrator,
    targets: Targets,
    blending: Blending,
    abstain_price: float | None,
) -> tuple[Calibrator, list[ChosenPolicies], np.ndarray | None]:
    """Calibrate, and choose from each candidate set, on the queries of a log that are not held out.

    `fitted` (k,) are calibrators of the whole log, whose transform and stated values are used. The result is ((k,)
    calibrators, S choices, (S, T, n) estimated probability that a query is answered wrongly). The last entry is None if
    answers are not compared.
    """
    has_agreement = log.answer is not None and len(log.models) > 2
    training = make_training_rows(log, np.asarray(log.answered) & ~held_out[:, None], compare=has_agreement)
    calibrators = refit_calibrators(fitted, training[:3])
    pairs, agreement = score_candidates(calibrators, training, blending, abstain_price, log.has_enough_complete)
    choices = [choose_single_candidates(pairs.take(np.flatnonzero(pairs.is_single)), targets)]
    if len(log.models) > 1:
        choices.append(choose_mixtures(pairs, targets))
    if has_agreement:
        choices.append(choose_mixtures(pairs if agreement is None else join([pairs, agreement]), targets))
    choices = [choice.padded() for choice in choices]
    if not has_agreement:
        return calibrators, choices, None
    wrong = estimate_wrong(calibrators, training, log, [choice.rungs for choice in choices])
    wrong = np.stack([choice.weights @ rungs for choice, rungs in zip(choices, wrong, strict=True)])
    return calibrators, choices, wrong


@compiled
def _expected_wrong(
    calibrators: Calibrator,
    training: TrainingRows,
    answered: Array,
    table: tuple[Candidates, Policies],
) -> Array:
    rows = CalibratedRows.of(calibrators, training, answered=answered)
    assert rows.answer is not None
    codes = rows.answer.T
    confidence = jnp.asarray(rows.confidence)

    def wrong(row: tuple[Candidates, Policies]) -> Array:
        candidate, policy = row
        first, second, third = candidate.first, candidate.second, candidate.third
        *_, second_right, third_right = split_by_agreement(rows, first, second, third)
        right = confidence.T  # for chains, which do not compare answers
        for model, probability in ((third, third_right), (second, second_right), (first, confidence[:, first])):
            right = right.at[model].set(probability)
        answered_by = walk(confidence.T, policy, codes).answered_by
        return jnp.where(answered_by, 1 - right, 0.0).sum(0)

    return lax.map(wrong, table)


def estimate_wrong(calibrators: Calibrator, training: TrainingRows, log: Log, tables: list[Candidates]) -> np.ndarray:
    """Estimate the probability that policies answer the queries of a log wrongly, from some of its labels: (S, L, n).

    Args:
        calibrators: (k,) calibrators of the models.
        training: the queries of the log; their labels count where they are `included`.
        log: the log.
        tables: S tables of L policies each, whose models are asked in their order in the log.
    """
    assert all(((table.first <= table.second) & (table.second <= table.third)).all() for table in tables)
    answer = np.full(log.answered.shape, NO_ANSWER) if log.answer is None else log.answer
    (answered,), padded = pad_to_size_class(log.answered), training._replace(answer=answer).padded()
    with_policies = ((table, table.policies(agreement=True)) for table in tables)
    wrong = [_expected_wrong(calibrators, padded, answered, table) for table in with_policies]
    return np.asarray(wrong, float)[..., : log.n_queries]
