"""Tune a policy again on a fresh log and the queries that it carries, and estimate the gain of the new policy.

Tuned on one week's labels alone, a new policy is worse half of the time. With the queries that the policy carries
(`rcjax.logs.kept_sample`) it is seldom worse (`benchmarks.year`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.codec import takes
from rcjax._core.batching import side_by_side
from rcjax.logs.errors import LogError, listed
from rcjax.logs.kept_sample import carried_rows, pooled, read_reference
from rcjax.logs.log import Log
from rcjax.logs.prices import read_prices
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, average_equal_answers, corrected_log
from rcjax.policy.counted import recorded_counted
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, Tuning, recorded_count, recorded_request_settings, recorded_tuning
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies, policies_of
from rcjax.tuning.candidates import ENOUGH_QUERIES
from rcjax.tuning.certify import hold_out
from rcjax.tuning.cross_validation import Gain
from rcjax.tuning.replaying.comparing import default_today
from rcjax.tuning.replaying.replay import replay_queries
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_answers
from rcjax.tuning.search import search_of
from rcjax.tuning.tune import Tuned, tune_in_stages

FEWEST_FOR_GAIN = 50  # that gains are estimated on


@dataclasses.dataclass(frozen=True)
class RetuningGain:
    """Cross-validated gain of retuned policies over the policy in service."""

    loss: float
    """Loss of the policy in service: error + λ·cost, refusals at their price."""
    gain: Gain[float]
    """Loss of the policy in service minus loss of the retuned policies."""
    lam: float
    """Price λ, in errors per unit of money."""
    n: int
    """Number of queries, fresh and carried."""

    def describe(self, noun: str) -> str:
        """Describe the gain in words, at the price of an error that the policy was tuned for.

        >>> RetuningGain(0.2, Gain(-0.009, 0.01), lam=1000.0, n=300).describe("error")
        'lose the equivalent of 0.9 ± 1.0 points of error'
        """
        points, se = 100 * self.gain.mean, 100 * self.gain.se
        return f"{'gain' if points >= 0 else 'lose'} the equivalent of {abs(points):.1f} ± {se:.1f} points of {noun}"

    def to_json(self) -> dict[str, float]:
        """Return the figures; `retuned` is the loss of the retuned policies."""
        losses = {"loss": self.loss, "retuned": self.loss - self.gain.mean, "se": self.gain.se}
        return losses | {"lam": self.lam, "n": self.n}


def carried_log(policy: AnyPolicy, prices: Any = None) -> Log:
    """Return the queries that a policy carries, as a log.

    Args:
        policy: the policy.
        prices: today's prices of tokens, as `rcjax.logs.read_prices` takes them; None: the prices of the tuning.

    Raises ValueError for a policy that carries no queries, and if prices of input and output have changed by different
    factors: the policy does not know the number of tokens.
    """
    reference = policy.provenance.get("reference")
    if reference is None or not policy.calibrations:
        problem = "carries no queries that it was tuned on" if policy.calibrations else "is not calibrated"
        raise ValueError(f"the policy {problem}, as one made by hand: tune one")
    task = "choice" if next(iter(policy.calibrations.values())).transform == "choice" else "generation"
    log = read_reference(reference, task)
    return log if prices is None else _repriced(log, recorded_tuning(policy).prices or {}, prices)


def _repriced(log: Log, before: Mapping[str, Any], prices: Any) -> Log:
    """Price carried queries at today's prices; models without a new price keep their costs."""
    then, now = read_prices(before) if before else {}, read_prices(prices)
    priced = [name for name in log.models if name in now]
    if not priced:
        raise LogError(f"the prices name none of {listed(log.models)}: give those of a model that the policy has")
    if unknown := [name for name in priced if name not in then]:
        problem = f"what tokens of {listed(unknown)} cost when the policy was tuned is not known"
        raise LogError(f"{problem}: tune again on a log of fresh queries")
    ratio = dict.fromkeys(log.models, 1.0)
    for name in priced:
        pairs = [(now[name].input, then[name].input), (now[name].output, then[name].output)]
        ratios = [new / old for new, old in pairs if old > 0]
        if not ratios or max(ratios) > min(ratios) * (1 + 1e-9) or any(new > 0 and not old for new, old in pairs):
            problem = f"prices of input and output of {name} have not changed by the same factor"
            raise LogError(f"{problem}, and the policy does not know its tokens: tune again on a log of fresh queries")
        ratio[name] = ratios[0]
    cost = np.asarray(log.query_cost, float) * [ratio[name] for name in log.models]
    prices_now = {name: now.get(name, then.get(name)) for name in log.models}
    known = {name: price for name, price in prices_now.items() if price is not None}
    return dataclasses.replace(log, query_cost=cost, prices=known).take(slice(None))  # type: ignore[arg-type]


def remembered(policy: AnyPolicy, log: Log) -> Log:
    """Put the queries that a policy carries before a fresh log, if both count the same kind of errors."""
    if policy.provenance.get("reference") is None or not policy.calibrations:
        return log
    nouns = recorded_counted(policy.provenance).noun, log.counted.noun
    return log if nouns[0] != nouns[1] and "difference" in nouns else pooled(carried_log(policy), log)


class RetuningTerms(NamedTuple):
    """The terms on which retuned policies are compared with the policy in service."""

    tuning: Tuning
    """Options that the policies are tuned by."""
    lam: float | None
    """Price λ, in errors per unit of money; None: they cannot be compared."""
    reason: str = ""
    """Reason why they cannot be compared, in words."""
    mendable: bool = False
    """Whether they could be compared on another log."""


def comparable_tuning(policy: AnyPolicy, log: Log) -> RetuningTerms:
    """Return the terms on which policies tuned again on a log are compared with a policy.

    λ is the price of the target, if the target is a price, and else that of the policy.
    """
    tuning = recorded_tuning(policy).within(log.models)
    spec, lam = tuning.spec, policy.expected.get("lam")
    absent = [name for name in policy.models if name not in tuning.models]
    if lam is None:
        return RetuningTerms(tuning, None, "the policy does not record its λ")
    if spec.search == "minimised":
        return RetuningTerms(tuning, None, "the policy minimises an objective that its file does not hold")
    if spec.max_seconds is not None:
        return RetuningTerms(tuning, None, "the policy keeps to a limit on the seconds")
    if absent:
        lacks = f"the log lacks {', '.join(absent)}, which the policy in service asks"
        return RetuningTerms(tuning, None, lacks, mendable=True)
    if not tuning.searches:
        return RetuningTerms(tuning, None, "the log has one model only of those tuned on", mendable=True)
    price = spec.lam if spec.error_cost is None else 1 / spec.error_cost
    return RetuningTerms(tuning, lam if price is None else price)


def _shuffled(log: Log, seed: int) -> Log:
    """Take the complete queries of a log at random, 5,000 at most; the log itself if fewer than two are complete."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(log.complete))[:ENOUGH_QUERIES]
    return log.take(order) if len(order) > 1 else log


@takes(policy=AnyPolicy, log=(Log, None))
def retune(policy: AnyPolicy, log: Log | None = None, *, bands: bool | None = None, prices: Any = None) -> Tuned:
    """Tune a policy again on a fresh log and the queries that it carries: for the same target, by the same search.

    The target is the one recorded by `Frontier.policy` or `rcjax tune`, else the policy's λ. The models are those of
    the first tuning that the log holds. Carried queries cost what their models cost in the log. The guarantee of a
    policy is tested again, on half of the fresh queries.

    Args:
        policy: the policy in service.
        log: the fresh log; None: the carried queries alone, at new prices.
        bands: estimate intervals; None: as in the first tuning.
        prices: today's prices of tokens, without a log; a log has its own.

    Raises ValueError for a policy that records neither target nor λ, or a policy of `minimise`, whose objective is not
    in its file; InfeasibleError, a ValueError, if no policy meets the target on this log; LogError if the log has fewer
    than two of the models, and as `fit` does.

    >>> import rcjax
    >>> old, fresh = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> tuned = rcjax.retune(rcjax.tune(old, error_cost=0.001, intervals=False).policy, fresh)
    >>> tuned.policy.provenance["tuning"]["error_cost"], tuned.log.n_queries
    (0.001, 600)
    """
    before = recorded_tuning(policy)
    if not before.spec.target:
        raise ValueError("the policy records neither a target nor its λ: tune a new one with rcjax tune")
    if before.spec.search == "minimised":
        raise ValueError(
            "the policy minimises an objective that its file does not hold: call rcjax.solving.minimise again"
        )
    if log is not None and prices is not None:
        raise ValueError("prices go with no log: read the log at these prices")
    log = carried_log(policy, prices) if log is None else log
    tuning, remarks = _restrict(log, before, bands)
    spec = tuning.spec
    if log.answer is None and any(part.agreements for part in policy.rungs):
        remarks.append("the policy compares answers, and the log has none: tuned without")
    chosen = _with_request_settings(log.select(tuning.models), policy)
    held_out = None
    if spec.confidence is not None:  # carried queries were tuned on before, and cannot guarantee anything
        chosen, held_out = hold_out(chosen, None, spec)
    everything = remembered(policy, chosen)
    if added := everything.n_queries - chosen.n_queries:
        remarks.append(f"tuned on {chosen.n_queries:,} queries of the log and {added:,} that the policy carries")
    if spec.today is None and before.spec.today is not None:
        spec = dataclasses.replace(spec, today=default_today(everything))
        absent = before.spec.today if isinstance(before.spec.today, str) else "a model of the policy in service"
        remarks.append(f"the log lacks {absent}, today's when it was tuned: compared with {spec.today}")
    tuned = tune_in_stages(everything, held_out, spec)
    return dataclasses.replace(tuned, notes=(*tuned.notes, *remarks))


def _restrict(log: Log, tuning: Tuning, bands: bool | None) -> tuple[Tuning, list[str]]:
    """Restrict the options of a tuning to the models of a log; (options, remarks on the models that the log lacks).

    `bands` as for `retune`. Raises LogError if fewer than two models are left.
    """
    left = tuning.within(log.models)
    absent = listed([name for name in tuning.models if name not in left.models])
    if not left.searches:
        raise LogError(f"{log.source}: it lacks {absent}: there are no two models left to tune")
    if bands is not None:
        left = dataclasses.replace(left, spec=dataclasses.replace(left.spec, intervals=bands))
    return left, [f"the log lacks {absent}: tuned without"] if absent else []


def _with_request_settings(log: Log, policy: AnyPolicy) -> Log:
    """Add the request options that a policy records for its models, where the log has none for them."""
    recorded = {model: how for model, how in recorded_request_settings(policy).items() if model in log.models}
    return dataclasses.replace(log, request_settings={**recorded, **(log.request_settings or {})} or None)


def held_out_gain(policy: AnyPolicy, log: Log, seed: int = 0, tuned: Tuned | None = None) -> RetuningGain | None:
    """Estimate the gain of retuning by five-fold cross-validation, at the policy's λ; None if it cannot be estimated.

    Each fold is answered by the policy in service, and by a policy tuned on the other folds with the same search.
    Answers cost their model's mean cost, and refusals their price. The queries are those of the fresh log and those
    that the policy carries, so that a bad week has no more than its share; 5,000 are drawn at random at most. The
    policy in service was tuned on the carried queries, so its loss there is raised by its optimism. Models
    that give the same answer get the mean of its outcomes (`alike`).

    Args:
        policy: the policy in service.
        log: the fresh log.
        seed: seed of the folds.
        tuned: the result of `retune` on both, if there is one: its log is used again.

    The gain cannot be estimated if the policy does not record its λ, is of `minimise`, or keeps to a limit on the
    seconds; if the log lacks one of its models, or has one model only; or with fewer than 50 complete queries.
    """
    tuning, lam, *_ = comparable_tuning(policy, log)
    if lam is None:
        return None
    if tuned is not None and tuned.held_out is None:
        everything = tuned.log.select(tuning.models)
    else:  # a guarantee is tested on half of the fresh queries, which count here
        everything = remembered(policy, log.select(tuning.models))
    log = _shuffled(everything, seed)
    if log.complete.sum() < FEWEST_FOR_GAIN:
        return None
    right = average_equal_answers(corrected_log(log))
    price = tuning.spec.abstain_price
    retuned = _left_out(_losses_on_others(policy, log, right, tuning.spec, lam))
    walked, old = replay_queries(policy, right), carried_rows(log)
    served = np.asarray(LossTerms(walked.wrong, walked.charge, walked.refused).loss(lam, price), float)
    if old.sum() >= FEWEST_FOR_GAIN:
        tuned_on = max(recorded_count(policy.provenance, "complete_queries", int(old.sum())), int(old.sum()))
        losses = _losses_on_others(policy, log.take(old), right.take(old), tuning.spec, lam)
        served = served + np.where(old, _optimism(losses) * old.sum() / tuned_on, 0.0)
    gain = Gain.of((served - retuned)[None]).at()
    return RetuningGain(float(served.mean()), gain, float(lam), log.n_queries)


def _losses_on_others(policy: AnyPolicy, log: Log, right: Log, spec: Spec, lam: float) -> np.ndarray:
    """Return the loss on each query of a log under the policies tuned without each fold of it: (FOLDS, n).

    Args:
        policy: the policy whose kind of cascade is tuned.
        log: the log to tune on.
        right: the same log, with the outcomes that losses are computed from.
        spec: options of the tuning.
        lam: price λ.
    """

    def losses(calibrators: Calibrator, policies: Policies) -> np.ndarray:
        terms = loss_terms_on_log(calibrators, policies, right, right.correct, right.cost)
        return np.asarray(terms.loss(lam, spec.abstain_price), float)[0]

    return np.stack([losses(*tuned) for tuned in _tuned_on_others(policy, log, spec, lam)])


def _left_out(losses: np.ndarray) -> np.ndarray:
    """Return the held-out loss on each query (n,), from losses (FOLDS, n)."""
    n = losses.shape[1]
    return losses[np.arange(n) % FOLDS, np.arange(n)]


def _optimism(losses: np.ndarray) -> float:
    """Estimate the optimism of a policy tuned on n queries: held-out loss minus in-sample loss, 0 at least.

    `losses` (FOLDS, n) are of policies tuned on four fifths of the queries. Optimism falls with the number of queries,
    and the result is scaled from four fifths to all.
    """
    out = _left_out(losses)
    within = (losses.sum(0) - out) / (FOLDS - 1)
    return max(float((out - within).mean()) * (1 - 1 / FOLDS), 0.0)


def _tuned_on_others(policy: AnyPolicy, log: Log, spec: Spec, lam: float) -> list[tuple[Calibrator, Policies]]:
    """Tune a policy again without each fold of a log, on the same number of queries each time.

    A frontier of one point is tuned again: the widest rung of the policy, at its λ.
    """
    fold, search = np.arange(log.n_queries) % FOLDS, search_of(spec)  # the log is in random order
    others = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    model = search.fit(log)
    widest = max(policy.rungs, key=lambda rung: (bool(rung.agreements), len(rung.models)))
    nothing = np.zeros(1, model.cost.dtype)
    policies = policies_of([model.models], [widest])
    point = Points(nothing + lam, np.zeros(1, int), LossTerms(nothing, nothing, nothing), policies)
    frontier = make_frontier(model, point, spec)
    require_answers(frontier.policies, log)
    retune_on = search.retuner(frontier, log, np.array([0]))
    n = min(map(len, others))
    return side_by_side(lambda rows: retune_on(log, rows[:n]), others, n=log.n_queries)


def why_untested(policy: AnyPolicy, log: Log) -> tuple[str, bool]:
    """Return (reason why `held_out_gain` is None, in words; whether another log could change that)."""
    terms = comparable_tuning(policy, log)
    if terms.lam is None:
        return terms.reason, terms.mendable
    return f"fewer than {FEWEST_FOR_GAIN} queries have the answers of all models", True
