"""The gain of tuning a policy again, estimated on queries that are left out of the tuning."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from rcjax._core.batching import map_in_threads
from rcjax.logs.kept_sample import carried_mask, with_carried_queries
from rcjax.logs.log import Log, sort_by_name
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, average_equal_answers, corrected_log, deal_folds
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, Tuning, recorded_count, recorded_tuning
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies, policies_from_rules
from rcjax.tuning.cross_validation import ENOUGH_QUERIES, Gain
from rcjax.tuning.replaying.replay import replay_queries
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_answers
from rcjax.tuning.search import make_search

#: Queries below which no gain is estimated.
MIN_QUERIES_FOR_GAIN = 50


@dataclasses.dataclass(frozen=True)
class RetuningGain:
    """Cross-validated gain of retuned policies over the policy in service."""

    loss: float
    """Loss of the policy in service: error + λ·cost, abstentions at their price."""
    gain: Gain
    """Loss of the policy in service minus mean loss of the retuned policies."""
    lam: float
    """Price λ, in errors per unit of money."""
    n_queries: int
    """Number of queries, fresh and carried."""

    def to_json(self) -> dict[str, float]:
        """Return the losses, with the gain and its standard error."""
        losses = {"loss": self.loss, "retuned_loss": self.loss - self.gain.mean}
        return losses | {"gain": self.gain.mean, "se": self.gain.se, "lam": self.lam, "n": self.n_queries}


class RetuningTerms(NamedTuple):
    """The terms on which retuned policies are compared with the policy in service."""

    tuning: Tuning
    """Options that the policies are tuned by."""
    lam: float | None
    """Price λ, in errors per unit of money; None: it is not known, or the policies cannot be compared."""
    reason: str = ""
    """Reason why the gain of retuning cannot be estimated, in words; empty if it can, given enough queries."""
    mendable: bool = False
    """Whether it could be estimated on another log."""


def retuning_terms(policy: AbstractPolicy, log: Log) -> RetuningTerms:
    """Return the terms on which policies tuned again on a log are compared with a policy.

    λ is that of the target, if the target has one, and else that of the policy.
    """
    tuning = recorded_tuning(policy).restrict_to(log.models)
    spec = tuning.spec
    lam = spec.lam if spec.error_cost is None else 1 / spec.error_cost
    lam = policy.expected.get("lam") if lam is None else lam
    absent = [name for name in policy.models if name not in tuning.models]
    if spec.has_own_objective:
        return RetuningTerms(tuning, None, "the policy minimises an objective that its file does not hold")
    if lam is None:
        return RetuningTerms(tuning, None, "the policy does not record its λ")
    if absent:
        lacks = f"the log lacks {', '.join(absent)}, which the policy in service asks"
        return RetuningTerms(tuning, None, lacks, mendable=True)
    if not tuning.can_search:
        return RetuningTerms(tuning, None, "the log has one model only of those tuned on", mendable=True)
    return RetuningTerms(tuning, lam, "the policy keeps to a limit on the seconds" * (spec.max_seconds is not None))


def held_out_gain(policy: AbstractPolicy, log: Log, seed: int = 0) -> RetuningGain | None:
    """Estimate the gain of retuning by five-fold cross-validation, at the policy's λ; None if it cannot be estimated.

    The policy in service answers each fold, and so does a policy tuned on the other folds with the same search. Answers
    cost their model's mean cost, and abstentions their price. The queries are the fresh and the carried ones, so that
    a bad week has no more than its share; at most 5,000 are drawn at random. The policy in service was tuned on the
    carried queries, so its loss there is raised by its optimism. Models that give the same answer get the mean of its
    outcomes (`average_equal_answers`). `why_untested` gives the reason if the gain cannot be estimated.
    """
    tuning, lam, reason, _ = retuning_terms(policy, log)
    if lam is None or reason:
        return None
    log = sort_by_name(with_carried_queries(policy, log.select(tuning.models)))
    complete = np.flatnonzero(log.complete)
    if len(complete) < MIN_QUERIES_FOR_GAIN:
        return None
    log = log.take(np.random.default_rng(seed).permutation(complete)[:ENOUGH_QUERIES])
    outcomes = average_equal_answers(corrected_log(log))
    retuned_loss, _ = _cross_fitted_losses(policy, log, outcomes, tuning.spec, lam)
    replayed, carried = replay_queries(policy, outcomes), carried_mask(log)
    terms = LossTerms(replayed.wrong, replayed.cost_at_means, replayed.abstained)
    loss = np.asarray(terms.loss(lam, tuning.spec.abstain_price), float)
    n_carried = int(carried.sum())
    if n_carried >= MIN_QUERIES_FOR_GAIN:
        tuned_on = max(recorded_count(policy.provenance, "complete_queries", n_carried), n_carried)
        losses = _cross_fitted_losses(policy, log.take(carried), outcomes.take(carried), tuning.spec, lam)
        # Optimism falls with the number of queries, and is scaled from four fifths to all.
        optimism = max(float(np.subtract(*losses).mean()), 0.0) * (1 - 1 / FOLDS)
        loss = loss + np.where(carried, optimism * n_carried / tuned_on, 0.0)
    gains = loss - retuned_loss
    gain = Gain.of(gains, gains).at()
    return RetuningGain(float(loss.mean()), gain, float(lam), log.n_queries)


def _cross_fitted_losses(
    policy: AbstractPolicy, log: Log, outcomes: Log, spec: Spec, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Tune a policy again without each fold of a log, and return (held-out, mean in-sample) losses, (n,) each.

    `outcomes` is the log with the outcomes that losses are computed from; the policies are tuned and judged at λ.
    """
    fold, n = deal_folds(log.queries, log.complete), log.n_queries
    costs = np.broadcast_to(outcomes.cost, outcomes.query_cost.shape)

    def losses(calibrators: Calibrator, policies: Policies) -> np.ndarray:
        terms = loss_terms_on_log(calibrators, policies, outcomes, outcomes.correct, costs)
        return np.asarray(terms.loss(lam, spec.abstain_price), float)[0]

    by_fold = np.stack([losses(*tuned) for tuned in _tune_without_folds(fold, policy, log, spec, lam)])
    held_out = by_fold[fold, np.arange(n)]
    return held_out, (by_fold.sum(0) - held_out) / (FOLDS - 1)


def _tune_without_folds(
    fold: np.ndarray, policy: AbstractPolicy, log: Log, spec: Spec, lam: float
) -> list[tuple[Calibrator, Policies]]:
    """Tune a policy again without each fold of a log, on the same number of queries each time.

    The widest rung of the policy is tuned, at λ, as a frontier of one point. `fold` (n,) is the fold of each query.
    """
    search = make_search(spec)
    rest = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    model = search.fit(log)
    widest = max(policy.rungs, key=lambda rung: (bool(rung.agreements), len(rung.models)))
    zero = np.zeros(1, model.cost.dtype)
    policies = policies_from_rules([model.models], [widest])
    point = Points(zero + lam, np.zeros(1, int), LossTerms(zero, zero, zero), policies)
    frontier = make_frontier(model, point, spec)
    require_answers(frontier.policies, log)
    tune_draw = search.draw_tuner(frontier, log, np.array([0]))
    n = min(map(len, rest))
    return map_in_threads(lambda rows: tune_draw(rows[:n]), rest, n=log.n_queries)


def why_untested(policy: AbstractPolicy, log: Log) -> tuple[str, bool]:
    """Return (reason why `held_out_gain` is None, in words; whether another log could change that)."""
    terms, few = (
        retuning_terms(policy, log),
        f"fewer than {MIN_QUERIES_FOR_GAIN} queries have the answers of all models",
    )
    return (terms.reason, terms.mendable) if terms.reason else (few, True)
