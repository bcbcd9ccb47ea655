"""Tuning a policy again, on a fresh log and what the policy remembers, for the same target; and whether that gains.

A week of labels alone makes a policy that is as often worse as it is better; with the queries that the policy carries
(`rcjax.logs.kept_sample`) it is seldom worse (`benchmarks.year`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rcjax._base.checks import takes
from rcjax._base.normal_law import upper_tail
from rcjax._core.batching import side_by_side
from rcjax.logs.errors import LogError, listed
from rcjax.logs.kept_sample import carried_rows, pooled, read_reference
from rcjax.logs.log import Log
from rcjax.logs.prices import read_prices
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import alike, corrected_log
from rcjax.policy.counted import recorded_counted
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import Tuning, recorded_asked, recorded_count, recorded_tuning
from rcjax.policy.spec import Spec
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import Outcomes, Points
from rcjax.solving.frontier.policies import Policies, policies_of
from rcjax.tuning.certify import hold_out
from rcjax.tuning.contest import Gain
from rcjax.tuning.judging import FOLDS
from rcjax.tuning.replaying.comparing import default_today
from rcjax.tuning.replaying.replay import walk_log
from rcjax.tuning.replaying.walk import outcomes_on_log, require_answers
from rcjax.tuning.search import search_of
from rcjax.tuning.tune import Tuned, tune_in_stages

_MOST_QUERIES = 5_000  # to tune on, of a fresh log: more show no smaller gains worth having

_FEWEST_QUERIES = 50

_ROUNDING = 1e-9  # of a loss

_CHANCE = 0.05

_CONTRADICTION = 0.01  # of logs in which nothing has changed, so many leave aside what the policy carries


def carried_log(policy: AnyPolicy, prices: Any = None) -> Log:
    """The queries that a policy carries.

    Args:
        policy: the policy.
        prices: what tokens cost today, as `rcjax.logs.read_prices` takes them; None: what they cost then.

    Raises ValueError for a policy that carries none, and where prices of input and output have not changed by the same
    factor: how many tokens there were of each is not known.
    """
    reference = policy.provenance.get("reference")
    if reference is None or not policy.calibrations:
        what = "carries no queries that it was tuned on" if policy.calibrations else "is not calibrated"
        raise ValueError(f"the policy {what}, as one made by hand: tune one")
    task = "choice" if next(iter(policy.calibrations.values())).transform == "choice" else "generation"
    log = read_reference(reference, task)
    return log if prices is None else _repriced(log, recorded_tuning(policy).prices or {}, prices)


def _repriced(log: Log, before: Mapping[str, Any], prices: Any) -> Log:
    """The carried queries of a policy at today's prices; models that these do not name cost what they did."""
    then, now = read_prices(before) if before else {}, read_prices(prices)
    priced = [name for name in log.models if name in now]
    if not priced:
        raise LogError(f"the prices name none of {listed(log.models)}: give those of a model that the policy has")
    if unknown := [name for name in priced if name not in then]:
        what = f"what tokens of {listed(unknown)} cost when the policy was tuned is not known"
        raise LogError(f"{what}: tune again on a log of fresh queries")
    ratio = dict.fromkeys(log.models, 1.0)
    for name in priced:
        pairs = [(now[name].input, then[name].input), (now[name].output, then[name].output)]
        ratios = [new / old for new, old in pairs if old > 0]
        if not ratios or max(ratios) > min(ratios) * (1 + 1e-9) or any(new > 0 and not old for new, old in pairs):
            what = f"prices of input and output of {name} have not changed by the same factor"
            raise LogError(f"{what}, and the policy does not know its tokens: tune again on a log of fresh queries")
        ratio[name] = ratios[0]
    cost = np.asarray(log.query_cost, float) * [ratio[name] for name in log.models]
    prices_now = {name: now.get(name, then.get(name)) for name in log.models}
    known = {name: price for name, price in prices_now.items() if price is not None}
    return dataclasses.replace(log, query_cost=cost, prices=known).take(slice(None))  # type: ignore[arg-type]


def remembered(policy: AnyPolicy, log: Log) -> Log:
    """A fresh log, with the queries that the policy carries before its own, as far as the same is counted on both.

    Carried queries are left aside where as many fresh ones contradict them: policies tuned on the fresh ones alone do
    better on the others of these than policies tuned on both. Fewer fresh ones may be a bad week.
    """
    if policy.provenance.get("reference") is None or not policy.calibrations:
        return log
    nouns = recorded_counted(policy.provenance).noun, log.counted.noun
    if nouns[0] != nouns[1] and "difference" in nouns:
        return log
    both = pooled(carried_log(policy), log)
    return log if _contradicted(policy, both) else both


def _contradicted(policy: AnyPolicy, both: Log) -> bool:
    """Whether chance does not explain that the fresh queries of a log say other things than the carried ones do."""
    lam, tuning = _comparable(policy, both)
    if lam is None or (both.answer is None and any(rung.agreements for rung in policy.rungs)):
        return False
    both = _shuffled(both.select(tuning.models), seed=1)
    fresh = ~carried_rows(both)
    if fresh.sum() < max((~fresh).sum(), _FEWEST_QUERIES) or fresh.all():
        return False
    alone, right = both.take(fresh), alike(corrected_log(both))
    without = _left_out(_losses_on_others(policy, alone, right.take(fresh), tuning.spec, lam))
    gain = _gain(_left_out(_losses_on_others(policy, both, right, tuning.spec, lam))[fresh], without)
    return gain.mean > 0 and upper_tail(*gain) < _CONTRADICTION


def _comparable(policy: AnyPolicy, log: Log) -> tuple[float | None, Tuning]:
    """(the λ at which policies tuned again are held against a policy, None where they cannot be; how to tune them)."""
    lam, tuning = policy.expected.get("lam"), recorded_tuning(policy).within(log.models)
    if not tuning.searches or not {*policy.models} <= {*tuning.models}:
        return None, tuning
    if tuning.spec.search == "minimised" or tuning.spec.max_seconds is not None:
        return None, tuning
    return lam, tuning


def _shuffled(log: Log, seed: int) -> Log:
    """The complete queries of a log, 5,000 at most, at random; all of it where there are fewer than two."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(log.complete))[:_MOST_QUERIES]
    return log.take(order) if len(order) > 1 else log


@takes(policy=AnyPolicy, log=(Log, None))
def retune(policy: AnyPolicy, log: Log | None = None, *, bands: bool | None = None, prices: Any = None) -> Tuned:
    """Tune a policy again on a fresh log and the queries that it carries: for the same target, by the same search.

    The target is that recorded by `Frontier.policy` or `rcjax tune`, else the policy's own λ. The models to choose from
    are those that there were, as far as the log holds them. Carried queries cost what their models cost in the log. A
    policy with a guarantee gets one again, tested on half of the fresh queries.

    Args:
        policy: the policy in service.
        log: the fresh log; None: the queries that it carries alone, for new prices.
        bands: whether to draw intervals; None: if it was done before.
        prices: what tokens cost today, without a log, which tells that itself.

    Raises ValueError for a policy that tells neither target nor λ, or one of `minimise`, whose objective it does not
    hold; InfeasibleError, a ValueError, where the target is out of reach on this log; LogError where the log holds
    fewer than two of the models, and as `fit` does.

    >>> import rcjax
    >>> log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> old, fresh = log.split(0.5, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(old)).policy(error_cost=0.001)
    >>> tuned = rcjax.retune(policy, fresh)
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
    tuning, remarks = _on(log, before, bands)
    spec = tuning.spec
    if log.answer is None and any(part.agreements for part in policy.rungs):
        remarks.append("the policy compares answers, and the log has none: tuned without")
    chosen, held_out = _with_asked(log.select(tuning.models), policy), None
    if spec.confidence is not None:  # what is carried was chosen by before, and promises nothing
        chosen, held_out = hold_out(chosen, None, spec)
    everything = remembered(policy, chosen)
    if added := everything.n_queries - chosen.n_queries:
        remarks.append(f"tuned on {chosen.n_queries:,} queries of the log and {added:,} that the policy carries")
    if spec.today is None and before.spec.today is not None:
        spec = dataclasses.replace(spec, today=default_today(everything))
        what = before.spec.today if isinstance(before.spec.today, str) else "a model of the policy in service"
        remarks.append(f"the log lacks {what}, today's when it was tuned: compared with {spec.today}")
    tuned = tune_in_stages(everything, held_out, spec)
    return dataclasses.replace(tuned, notes=(*tuned.notes, *remarks))


def _on(log: Log, tuning: Tuning, bands: bool | None) -> tuple[Tuning, list[str]]:
    """(how to tune on a log, what to say of models that it lacks); bands: whether to draw them, None as before.

    Raises LogError where fewer than two models are left.
    """
    left = tuning.within(log.models)
    absent = listed([name for name in tuning.models if name not in left.models])
    if not left.searches:
        raise LogError(f"{log.source}: it lacks {absent}: there are no two models left to tune")
    if bands is not None:
        left = dataclasses.replace(left, spec=dataclasses.replace(left.spec, intervals=bands))
    return left, [f"the log lacks {absent}: tuned without"] if absent else []


def _with_asked(log: Log, policy: AnyPolicy) -> Log:
    """The log, which for models that it does not tell it of takes from the policy how they were asked."""
    recorded = {model: how for model, how in recorded_asked(policy).items() if model in log.models}
    return dataclasses.replace(log, asked={**recorded, **(log.asked or {})} or None)


@dataclasses.dataclass(frozen=True)
class RetuningGain:
    """What tuning again gains on the policy in service, on queries left out of it."""

    loss: float
    """error + λ·cost of the policy in service."""
    gain: Gain
    """By how much that of the policies tuned again is lower."""
    lam: float
    n: int
    """Queries: fresh ones, and those that the policy carries."""

    @property
    def share(self) -> float:
        """The gain as a share of the policy's loss."""
        return self.gain.mean / self.loss if self.loss > 0 else 0.0

    @property
    def better(self) -> bool:
        """Whether chance does not explain the gain: the lower end of its 90 % interval is above 0."""
        return self.expected and self.p_value < _CHANCE

    @property
    def worse(self) -> bool:
        """Whether chance does not explain the loss."""
        return self.gain.mean < -_ROUNDING * self.loss and upper_tail(-self.gain.mean, self.gain.se) < _CHANCE

    @property
    def expected(self) -> bool:
        """Whether there is a gain at all, by chance or not."""
        return self.gain.mean > _ROUNDING * self.loss

    @property
    def p_value(self) -> float:
        """One-sided, that nothing is to be gained by tuning again; by the normal law."""
        if abs(self.gain.mean) <= _ROUNDING * self.loss:
            return 1.0  # policies that do the same, but for rounding
        return upper_tail(*self.gain)

    def describe(self, noun: str) -> str:
        """The gain in words, at the price of an error that the policy was tuned for.

        >>> RetuningGain(0.2, Gain(-0.009, 0.01), lam=1000.0, n=300).describe("error")
        'lose the equivalent of 0.9 ± 1.0 points of error'
        """
        points, se = 100 * self.gain.mean, 100 * self.gain.se
        return f"{'gain' if points >= 0 else 'lose'} the equivalent of {abs(points):.1f} ± {se:.1f} points of {noun}"

    def to_json(self) -> dict[str, float]:
        """The figures: `retuned` is the loss of the policies tuned again."""
        figures = {"loss": self.loss, "retuned": self.loss - self.gain.mean, "se": self.gain.se}
        return figures | {"lam": self.lam, "n": self.n, "share": self.share}


def held_out_gain(policy: AnyPolicy, log: Log, seed: int = 0, tuned: Tuned | None = None) -> RetuningGain | None:
    """What tuning again on a fresh log, and what the policy carries, gains: by five-fold cross-validation at its λ.

    The policy and, for each fold, the policy tuned on the other folds by the same search answer the queries of the
    fold; answers are charged their model's mean cost, refusals at their price. Carried queries count, so that a bad
    week of labels convinces by its share alone; the policy in service was tuned on them, so its loss there is raised by
    what tuning on as many makes it look better (`_optimism`). Equal answers to a query count as equally right. Of more
    than 5,000 complete queries, 5,000 are taken at random.

    Args:
        policy: the policy in service.
        log: the fresh log.
        seed: of the folds.
        tuned: what `retune` made of both, if it was called: the log with the carried queries is not made again.

    None where the policy does not record its λ, minimises an objective of one's own or keeps to a limit on the
    seconds, with fewer than 50 complete queries, where the log lacks a model of the policy, or there is but one.
    """
    lam, tuning = _comparable(policy, log)
    if lam is None:
        return None
    if tuned is not None and tuned.held_out is None:
        everything = tuned.log.select(tuning.models)
    else:  # a guarantee is tested on half of the fresh queries, which count here
        everything = remembered(policy, log.select(tuning.models))
    log = _shuffled(everything, seed)
    if log.complete.sum() < _FEWEST_QUERIES:
        return None
    right, price = alike(corrected_log(log)), tuning.spec.abstain_price
    again = _left_out(_losses_on_others(policy, log, right, tuning.spec, lam))
    walked, old = walk_log(policy, right), carried_rows(log)
    served = np.asarray(Outcomes(walked.wrong, walked.charge, walked.refused).loss(lam, price), float)
    if old.sum() >= _FEWEST_QUERIES:
        tuned_on = max(recorded_count(policy.provenance, "complete_queries", int(old.sum())), int(old.sum()))
        losses = _losses_on_others(policy, log.take(old), right.take(old), tuning.spec, lam)
        served = served + np.where(old, _optimism(losses) * old.sum() / tuned_on, 0.0)
    return RetuningGain(float(served.mean()), _gain(served, again), float(lam), log.n_queries)


def _losses_on_others(policy: AnyPolicy, log: Log, right: Log, spec: Spec, lam: float) -> np.ndarray:
    """(FOLDS, n) the loss on each query of a log by the policies tuned without each fold of it.

    Args:
        policy: of which kind they are.
        log: tuned on.
        right: the same with outcomes that losses are counted by.
        spec: how it is tuned.
        lam: the price.
    """

    def losses(calibrators: Calibrator, policies: Policies) -> np.ndarray:
        outcomes = outcomes_on_log(calibrators, policies, right, right.correct, right.cost)
        return np.asarray(outcomes.loss(lam, spec.abstain_price), float)[0]

    return np.stack([losses(*tuned) for tuned in _tuned_on_others(policy, log, spec, lam)])


def _left_out(losses: np.ndarray) -> np.ndarray:
    """(n,) the loss on each query by the policy tuned without it, of losses (FOLDS, n)."""
    n = losses.shape[1]
    return losses[np.arange(n) % FOLDS, np.arange(n)]


def _optimism(losses: np.ndarray) -> float:
    """By how much a policy looks better on the n queries that it was tuned on than on others.

    Of policies tuned on four fifths of them, with losses (FOLDS, n) by all; it falls with the number of queries.
    """
    out = _left_out(losses)
    within = (losses.sum(0) - out) / (FOLDS - 1)
    return max(float((out - within).mean()) * (1 - 1 / FOLDS), 0.0)


def _gain(served: np.ndarray, again: np.ndarray) -> Gain:
    return Gain(*map(float, Gain.of((served - again)[None])))


def _dealt(log: Log) -> np.ndarray:
    """(n,) the fold of each query, of a log whose order is at random."""
    return np.arange(log.n_queries) % FOLDS


def _tuned_on_others(policy: AnyPolicy, log: Log, spec: Spec, lam: float) -> list[tuple[Calibrator, Policies]]:
    """The policy tuned again without each fold of a log, on as many queries each time.

    What is tuned again is a frontier of one point: the policy's models, the most that a rung of it has, at its λ.
    """
    fold, search = _dealt(log), search_of(spec)
    others = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    model, widest = search.fit(log), max(policy.rungs, key=lambda rung: (bool(rung.agreements), len(rung.models)))
    nothing = np.zeros(1, model.cost.dtype)
    policies = policies_of([model.models], [widest])
    point = Points(nothing + lam, np.zeros(1, int), Outcomes(nothing, nothing, nothing), policies)
    frontier = make_frontier(model, point, spec)
    require_answers(frontier.policies, log)
    again, n = search.again(frontier, log, np.array([0])), min(map(len, others))
    return side_by_side(lambda rows: again(log, rows[:n]), others, n=log.n_queries)


def why_untested(policy: AnyPolicy, log: Log) -> tuple[str, bool]:
    """(why `held_out_gain` tells nothing, in words; whether another log could make it tell).

    Args:
        policy: the policy in service.
        log: the fresh log.
    """
    if policy.expected.get("lam") is None:
        return "the policy does not record its λ", False
    if recorded_tuning(policy).spec.max_seconds is not None:
        return "the policy keeps to a limit on the seconds", False
    absent = [name for name in policy.models if name not in log.models]
    if absent:
        return f"the log lacks {', '.join(absent)}, which the policy in service asks", True
    return f"fewer than {_FEWEST_QUERIES} queries have the answers of all models", True
