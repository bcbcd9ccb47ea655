"""Tuning a policy again, on a fresh log and for the same target: what that changes, and whether it gains."""

import dataclasses
import math
from typing import Any

import numpy as np

from rcjax._base.checks import takes
from rcjax._core.batching import side_by_side
from rcjax.frontier.frontier import make_frontier
from rcjax.frontier.points import Outcomes, Points
from rcjax.frontier.policies import Policies, policies_of
from rcjax.logs.errors import LogError, listed
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import Tuning, recorded_asked, recorded_tuning
from rcjax.policy.spec import Spec
from rcjax.replaying.replay import as_tuned, walk_log
from rcjax.replaying.walk import outcomes_on_log, require_answers
from rcjax.tuning.contest import Gain
from rcjax.tuning.judging import FOLDS
from rcjax.tuning.searches import as_specified, searched_by
from rcjax.tuning.tune import Tuned, tune_in_stages

_MOST_QUERIES = 5_000  # to tune on, of a fresh log: more show no smaller gains worth having

_FEWEST_QUERIES = 50

_ROUNDING = 1e-9  # of a loss

_CHANCE = 0.05


@takes(policy=AnyPolicy, log=Log)
def retune(policy: AnyPolicy, log: Log, *, bands: bool | None = None) -> Tuned:
    """Tune a policy again on a fresh log: for the same target, by the same search, with the same options.

    The target is that recorded by `Frontier.policy` or `rcjax tune`, else the policy's own λ. The models to choose from
    are those that there were, as far as the log holds them. A policy with a guarantee gets one again: half of the
    queries are held out for it; a mixture becomes one again, where one is needed to meet the target. `bands` says
    whether to draw intervals; None does so if it was done before.

    Raises ValueError for a policy that tells neither target nor λ, or one of `minimise`, whose objective it does not
    hold; InfeasibleError, a ValueError, where the target is out of reach on this log; LogError where the log holds
    fewer than two of the models, and as `fit` does.

    >>> import rcjax
    >>> log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> old, fresh = log.split(0.5, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(old)).policy(error_cost=0.001)
    >>> rcjax.retune(policy, fresh).policy.provenance["tuning"]["error_cost"]
    0.001
    """
    before = recorded_tuning(policy)
    if not before.spec.target:
        raise ValueError("the policy records neither a target nor its λ: tune a new one with rcjax tune")
    if before.spec.search == "minimised":
        raise ValueError(
            "the policy minimises an objective that its file does not hold: call rcjax.solving.minimise again"
        )
    tuning, remarks = _on(log, before, bands)
    spec = tuning.spec
    if log.answer is None and any(part.agreements for part in policy.rungs):
        remarks.append("the policy compares answers, and the log has none: tuned without")
    chosen = _with_asked(log.select(tuning.models), policy)
    tuned = tune_in_stages(chosen, None, spec, by=as_specified(spec))
    return dataclasses.replace(tuned, notes=tuple(remarks))


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
    """What policies tuned on a fresh log gain on the one in service, on queries that they were not tuned on."""

    loss: float
    """error + λ·cost of the policy in service."""
    gain: Gain
    """By how much that of the policies tuned again is lower."""
    before: Gain
    """The same on queries of the log that the policy was tuned on; NaN where there are none."""
    lam: float
    n: int
    """Fresh queries."""

    @property
    def share(self) -> float:
        """The gain as a share of the policy's loss."""
        return self.gain.mean / self.loss if self.loss > 0 else 0.0

    @property
    def better(self) -> bool:
        """Whether chance does not explain the gain: the lower end of its 90 % interval is above 0."""
        return self.gain.mean > _ROUNDING * self.loss and _above_zero(*self.gain) < _CHANCE

    @property
    def worse(self) -> bool:
        """Whether chance does not explain the loss."""
        return self.gain.mean < -_ROUNDING * self.loss and _above_zero(-self.gain.mean, self.gain.se) < _CHANCE

    @property
    def p_value(self) -> float:
        """One-sided, that nothing is to be gained by tuning again that was not to be gained before; by the normal law.

        The larger one of two: of the gain, and of its rise since the policy was tuned. Where the new policies beat the
        policy on the old queries too, it was unlucky when it was tuned, and nothing has changed.
        """
        if abs(self.gain.mean) <= _ROUNDING * self.loss:
            return 1.0  # policies that do the same, but for rounding
        rise = self.gain.mean - self.before.mean
        return max(_above_zero(*self.gain), _above_zero(rise, math.hypot(self.gain.se, self.before.se)))

    def describe(self, noun: str) -> str:
        """The gain in words, at the price of an error that the policy was tuned for.

        >>> RetuningGain(0.2, Gain(-0.009, 0.01), Gain(math.nan, 0.0), lam=1000.0, n=300).describe("error")
        'lose what 0.9 ± 1.0 points of error are worth'
        """
        points, se = 100 * self.gain.mean, 100 * self.gain.se
        return f"{'gain' if points >= 0 else 'lose'} what {abs(points):.1f} ± {se:.1f} points of {noun} are worth"

    def to_json(self) -> dict[str, float]:
        """The figures: `retuned` is the loss of the policies tuned again, `old` the gain before."""
        gain, before = self.gain, self.before
        figures = {"loss": self.loss, "retuned": self.loss - gain.mean, "se": gain.se, "old": before.mean}
        return figures | {"old_se": before.se, "lam": self.lam, "n": self.n, "share": self.share}


def _above_zero(mean: float, se: float) -> float:
    """The probability, by chance alone, of a mean so far above 0."""
    if math.isnan(mean):
        return 0.0
    return math.erfc(mean / se / math.sqrt(2)) / 2 if se > 0 else float(mean <= 0)


def held_out_gain(policy: AnyPolicy, log: Log, old: Log | None = None, seed: int = 0) -> RetuningGain | None:
    """What tuning again on a fresh log would gain, by five-fold cross-validation at the policy's own λ.

    The policy and, for each fold, the policy tuned on the other folds by the same search answer the queries of the
    fold, and all of them those of the old log; answers are charged their model's mean cost on each log, refusals at
    their price. Of more than 5,000 complete queries, 5,000 are taken at random.

    Args:
        policy: the policy in service.
        log: the fresh log.
        old: the log that the policy was tuned on.
        seed: of the folds.

    None where the policy does not record its λ, minimises an objective of one's own or keeps to a limit on the
    seconds, with fewer than 50 complete queries, where a log lacks a model of the policy, or there is but one.
    """
    lam = policy.expected.get("lam")
    tuning = recorded_tuning(policy).within(log.models if old is None else tuple({*log.models} & {*old.models}))
    if lam is None or not tuning.searches or not {*policy.models} <= {*tuning.models}:
        return None
    if tuning.spec.search == "minimised" or tuning.spec.max_seconds is not None:
        return None
    log, old = as_tuned(policy, log.select(tuning.models)), None if old is None else as_tuned(policy, old)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(log.complete))[:_MOST_QUERIES]
    if len(order) < _FEWEST_QUERIES:
        return None
    log = log.take(order)
    tuned, fold, price = _tuned_on_others(policy, log, tuning.spec, lam), _dealt(log), tuning.spec.abstain_price

    def losses(log: Log, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) of the policy in service, and of those tuned again, of which each answers so much (FOLDS, n)."""
        log = corrected_log(log)
        walked, answered = walk_log(policy, log), np.zeros(log.n_queries)
        for (calibrators, policies), share in zip(tuned, shares, strict=True):
            outcomes = outcomes_on_log(calibrators, policies, log, log.correct, log.cost)
            answered += share * np.asarray(outcomes.loss(lam, price), float)[0]
        return np.asarray(Outcomes(walked.wrong, walked.charge, walked.refused).loss(lam, price), float), answered

    served, again = losses(log, fold == np.arange(FOLDS)[:, None])
    before = Gain(math.nan, 0.0)
    if old is not None and old.select(tuning.models).complete.sum() > 1:
        old = old.select(tuning.models)
        before = _gain(*losses(old.take(old.complete), np.full((FOLDS, 1), 1 / FOLDS)))
    return RetuningGain(float(served.mean()), _gain(served, again), before, float(lam), log.n_queries)


def _gain(served: np.ndarray, again: np.ndarray) -> Gain:
    return Gain(*map(float, Gain.of((served - again)[None])))


def _dealt(log: Log) -> np.ndarray:
    """(n,) the fold of each query, of a log whose order is at random."""
    return np.arange(log.n_queries) % FOLDS


def _tuned_on_others(policy: AnyPolicy, log: Log, spec: Spec, lam: float) -> list[tuple[Calibrator, Policies]]:
    """The policy tuned again without each fold of a log, on as many queries each time.

    What is tuned again is a frontier of one point: the policy's models, the most that a rung of it has, at its λ.
    """
    fold, by = _dealt(log), searched_by(spec.search)
    others = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    model, widest = by.fit(log, spec), max(policy.rungs, key=lambda rung: (bool(rung.agreements), len(rung.models)))
    nothing = np.zeros(1, model.cost.dtype)
    policies = policies_of([model.models], [widest])
    point = Points(nothing + lam, np.zeros(1, int), Outcomes(nothing, nothing, nothing), policies)
    how: dict[str, Any] = {"search": spec.search, "chain": spec.chain, "abstain_price": spec.abstain_price}
    frontier = make_frontier(model, point, **how)
    require_answers(frontier.policies, log)
    again, n = by.again(frontier, log, np.array([0])), min(map(len, others))
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
