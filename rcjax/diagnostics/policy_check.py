"""Is a policy still right? A fresh log of labelled answers against what the policy was tuned on.

Four things can go wrong after the tuning: a model's calibration, the distribution of its raw confidences, the error and
the cost of the policy; and re-tuning may have come to pay. Each has a figure, a limit from which on it matters, and a
p-value for the change since the tuning. It has drifted where the figure is beyond its limit *and* the p-value,
adjusted for all tests together, is below the level of the alarm: what is too small to matter does not alarm in a log of
any size, and of logs in which nothing has changed at most that share does.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import PurePath
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from rcjax._core.json_values import plain
from rcjax.diagnostics.policy_verdicts import (
    ALARM,
    judge_all,
    judge_models,
    judge_policy,
    tell_cheaper,
    tell_followed,
)
from rcjax.diagnostics.replacement import judge_answers, judge_labels, worth_it
from rcjax.diagnostics.verdicts import Check, Verdict, worst
from rcjax.goodness_of_fit.reliability import brier_excess, compare, shuffled_labels
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import expected_calibration_error
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.following import Bill
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_count, recorded_tuning
from rcjax.replaying.replay import Walked, as_tuned, walk_log
from rcjax.replaying.stream import Rungs
from rcjax.replaying.walk import calibrated_confidence
from rcjax.tuning.certify import Overlap, overlap
from rcjax.tuning.retune import RetuningGain, carried_log, held_out_gain, why_untested

_ROUNDING = 1e-9  # of a mean: where all queries cost the same, its interval is as wide as rounding

_MOST_COMPARED = 2_000  # queries of the fresh log in permutations: more tell little beside 400 of the old one


@dataclasses.dataclass(frozen=True)
class PolicyCheck:
    """What a fresh log says of a policy. Figures are shares of 1, money is per query."""

    source: str
    """The fresh log."""
    policy_models: tuple[str, ...]
    """The models that the policy may ask."""
    n: int
    """Queries of the fresh log that they all answered."""
    reference: int
    """Queries of the log tuned on that it was compared with."""
    tuned_on: int
    """All queries of that log."""
    models: list[dict[str, Any]]
    """By model: `answers`, `accuracy` and mean `confidence`, with `accuracy_tuned` and `confidence_tuned` on the log
    tuned on; `brier_excess` and, for the change since, `excess_p`; `calibration_error`, that `calibration_error_tuned`,
    and for the change `curve_p`; `distance`, √CvM of the raw confidences, with `distance_p`, and their medians
    `median`, `median_tuned` as probabilities."""
    error: dict[str, Any]
    """`seen` with `se`, `expected` with `expected_se`, and where it has one `interval` with its `level`; `tuned`, what
    it is on the log tuned on; `p_value`. Of a ladder that follows its bill, what following it comes to."""
    cost: dict[str, Any]
    """The same of the bill, at the position of a ladder; for policies found by the model alone, of the cost at the
    models' mean costs. `p_value` is one-sided, of so much more than expected, and `p_below` of so much less, which is
    no drift. Of a ladder that follows its bill also `least`, the bill of its cheapest rung, and `least_p`, of that
    being above the budget: only then it cannot be kept."""
    retuning: dict[str, Any] | None
    """`loss` (error + λ·cost) of the policy and `retuned`, of those tuned again on queries that they had not seen, `se`
    of the difference; `old`, the difference on the log tuned on, with `old_se`; `lam`, `share`, `p_value` and `n`; by
    `worth_it`, whether `rcjax retune` takes that for enough. None where not tested."""
    checks: tuple[Check, ...]
    """Every check, judged; `p_value` is adjusted for their number, and "bad" is what has drifted."""
    remarks: tuple[str, ...]
    """What is worth knowing besides."""
    followed: dict[str, float] | None = None
    """What following its bill does on these queries, in their order (`replaying.stream.Stream.to_json`), with
    `budget`, and `tuned`, the position as it was tuned, and what `error_tuned` is there. None for what follows none."""
    unlabelled: int = 0
    """Of the `n` queries, those of which no answer is labelled."""
    counted: Counted = ERRORS
    """What is counted on the log, with the words for it; in the JSON form its noun."""

    @property
    def drifted(self) -> bool:
        """Whether anything has."""
        return self.verdict == "bad"

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all checks."""
        return worst(self.checks)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values, without what does not apply; what is not a number becomes None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.followed is None:
            del fields["followed"]
        judged = {"checks": [dataclasses.asdict(check) for check in self.checks]}
        return {"drifted": self.drifted, "verdict": self.verdict} | plain(
            fields | judged | {"counted": self.counted.noun}
        )


def check_policy(
    policy: AnyPolicy,
    log: Log,
    *,
    retuning: bool = True,
    seed: int = 0,
) -> PolicyCheck:
    """Is a policy still right on a fresh log, whose queries it was not tuned on?

    Tested, for each model that the policy may ask: its calibration, by the Brier score beyond what the confidences
    promise and by the calibration error, and its raw confidences, by the Cramér–von Mises distance, all against the
    queries of the training log that the policy carries, by permutations. For the policy: its error and its cost against
    those expected, counting the sampling of both logs; and what re-tuning would gain on queries left out
    (`rcjax.tuning.retune`). Cheaper than expected is no drift, but worth a remark. A ladder is judged by its expected
    error and cost on each query, without the noise of the lots. Where it follows its bill, what counts is the error
    that it keeps to its budget with; its cost has drifted where even its cheapest rung costs more. p-values are
    adjusted by Holm's method. A model's own tests take all its answers; the others the queries that all answered. Where
    some queries of the fresh log were tuned on, a remark counts them.

    Args:
        policy: the policy in service.
        log: the fresh log.
        retuning: whether to ask what re-tuning would gain, which takes most of the time.
        seed: of the permutations and folds.

    Raises ValueError for a policy made by hand, which carries no queries that it was tuned on; LogError where the log
    lacks a model, is the one tuned on, or has too few answers.

    >>> import rcjax
    >>> log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> train, fresh = log.split(0.5, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(train), lam=[1000.0], cascades="full").policy(lam=1000.0)
    >>> check = rcjax.check_policy(policy, fresh)
    >>> check.drifted, len(check.checks), check.reference
    (False, 9, 300)
    """
    shared = overlap(log, policy)
    if shared.whole:
        raise LogError(f"{log.source}: the policy was tuned on this very log: check it on fresh queries")
    old = as_tuned(policy, carried_log(policy).select(policy.models))
    new = as_tuned(policy, log.select(policy.models))
    # The least p-value, times the number of tests, can be half the level.
    permutations = max(999, math.ceil(2 * (3 * len(policy.models) + 3) / ALARM))
    shuffled = lru_cache(1)(partial(shuffled_labels, permutations=permutations, seed=seed))  # most share the sizes
    sides = _answers(policy, old), _answers(policy, new)
    rows = [_compare_model(policy, name, *sides, shuffled) for name in policy.models]
    before, now = walk_log(policy, old), walk_log(policy, new)
    trained_on = recorded_count(policy.provenance, "complete_queries", len(before.wrong))
    by_model = recorded_tuning(policy).spec.search != "selected"
    cost = _against_promise(policy, "cost", _costs(before, by_model), _costs(now, by_model), trained_on)
    wrong, followed, money = now.wrong, None, tuple(tell_cheaper(cost))
    if policy.budget is not None and policy.follows:
        rungs = Rungs.of(policy, new)
        stream = rungs.followed(Bill.of(policy.budget))
        wrong, cost = stream.wrong, cost | _least(rungs.spent[0], policy.budget)
        at_tuned = {"tuned": policy.position, "error_tuned": float(now.wrong.mean()), "budget": policy.budget}
        followed = stream.to_json() | at_tuned
        money = (tell_followed(followed, cost, log.counted),)
    error = _against_promise(policy, "error", before.wrong, wrong, trained_on)
    gain = held_out_gain(policy, log, seed) if retuning else None
    unlabelled = int((new.complete & ~new.labelled.any(1)).sum())
    raw = [*judge_models(rows, log.counted), *judge_policy(error, cost, gain, log.counted)]
    raw += judge_labels(log, policy.models)
    answers = judge_answers(log, policy.models)
    lacking = [] if answers.verdict == "fine" else [answers]
    return PolicyCheck(
        source=PurePath(log.source).name,
        policy_models=policy.models,
        n=len(now.wrong),
        reference=old.n_queries,
        tuned_on=recorded_count(policy.provenance, "queries", old.n_queries),
        models=rows,
        error=error,
        cost=cost,
        retuning=gain and gain.to_json() | {"p_value": gain.p_value, "worth_it": worth_it(gain)},
        followed=followed,
        checks=(*lacking, *judge_all(raw, ALARM, unlabelled, len(now.wrong))),
        unlabelled=unlabelled,
        counted=log.counted,
        remarks=(*_remarks(policy, new, shared, gain, retuning), *money),
    )


class _Answers(NamedTuple):
    """The answers of the k models of a policy to the queries of a log."""

    source: str
    logprob: np.ndarray  # (k, n) in the precision in which a policy carries them
    confidence: np.ndarray  # (k, n) calibrated
    correct: np.ndarray  # (k, n)
    labelled: np.ndarray  # (k, n) those with a label; where some have none, of a fair sample

    def of(self, j: int) -> tuple[np.ndarray, ...]:
        """(logprob, confidence, correct) of the answers of one model that have a label."""
        return tuple(column[j, self.labelled[j]] for column in self[1:-1])


def _answers(policy: AnyPolicy, log: Log) -> _Answers:
    """What a log of the models of a policy, in its order, tells of each."""
    logprob = np.asarray(log.logprob).T
    carried = logprob.astype(np.float32)
    calibrations = [policy.calibrations[name] for name in log.models]
    confidence = calibrated_confidence(calibrations, carried.astype(logprob.dtype))
    return _Answers(log.source, carried, confidence, np.asarray(log.correct).T, log.labelled.T)


def _compare_model(
    policy: AnyPolicy, name: str, old: _Answers, new: _Answers, shuffled: Callable[[int, int], np.ndarray]
) -> dict[str, Any]:
    """The row of one model: its answers in the old log and in the new one; `shuffled` as `shuffled_labels`."""
    j = policy.models.index(name)
    tuned, fresh = old.of(j), new.of(j)
    (before, phi_before, right_before), (after, phi, y) = tuned, fresh
    if min(len(before), len(after)) < 2:
        source = new.source if len(after) < 2 else old.source
        raise LogError(f"{source}: fewer than two answers of {name} with a label: log more")
    values, confidence, right = (np.concatenate(both) for both in zip(tuned, fresh, strict=True))
    m = len(before)
    rng = np.random.default_rng(0)
    sample = np.concatenate([_some(rng, np.arange(m)), _some(rng, np.arange(m, len(values)))])
    labels = shuffled(int((sample < m).sum()), int((sample >= m).sum()))
    comparison = compare(values[sample], confidence[sample], right[sample], labels)
    return {
        "model": name,
        "answers": len(y),
        "accuracy": float(y.mean()),
        "accuracy_tuned": float(right_before.mean()),
        "confidence": float(phi.mean()),
        "confidence_tuned": float(phi_before.mean()),
        "brier_excess": float(brier_excess(phi, y).mean()),
        "excess_p": comparison.excess_p,
        "calibration_error": expected_calibration_error(phi, y),
        "calibration_error_tuned": expected_calibration_error(phi_before, right_before),
        "curve_p": comparison.curve_p,
        "distance": comparison.distance,
        "distance_p": comparison.distance_p,
        "median": math.exp(np.median(after)),
        "median_tuned": math.exp(np.median(before)),
    }


def _some(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    return rows if len(rows) <= _MOST_COMPARED else np.sort(rng.permutation(rows)[:_MOST_COMPARED])


def _costs(walked: Walked, by_model: bool) -> np.ndarray:
    """(n,) values whose mean is the cost, of the kind that the search promises: bills, or at the models' mean costs.

    The variance of the latter is n times that of their mean: what one query moves is how often a model is asked, and
    what its answers cost on average.
    """
    if not by_model:
        return walked.spent
    mean, share = walked.query_cost.mean(1), walked.asked.mean(1)
    return walked.charge + share @ (walked.query_cost - mean[:, None])


def _least(spent: np.ndarray, budget: float) -> dict[str, float]:
    """What the cheapest rung costs on n queries (n,), and how likely chance alone puts that above the budget."""
    least = float(spent.mean())
    return {"least": least, "budget": budget, "least_p": _chance(least - budget, _standard_error(spent, len(spent)))}


def _against_promise(
    policy: AnyPolicy, name: str, before: np.ndarray, now: np.ndarray, trained_on: int
) -> dict[str, Any]:
    """The mean of `now` (n,) against what the policy promises, with the sampling of both logs.

    The promise is what was expected, or what the policy does on the log tuned on, `before`, whichever is nearer, with
    the standard error there: the one may rest on a model that is wrong, and the other is the luckier for the choice.
    With the interval that the policy carries, it is either of them or the middle, which estimates that luck, but none
    beyond the ends; the standard error is then the interval's. `p_value` is that of the change: of an error either way,
    of money upwards, as less of it is no drift; of that `p_below` is.
    """
    recorded = policy.expected
    mean, se = float(now.mean()), _standard_error(now, len(now))
    replayed, level = float(before.mean()), recorded.get("level")
    expected = recorded.get(name)
    expected = replayed if expected is None else expected
    promises = [float(expected), replayed]
    expected_se, interval = _standard_error(before, trained_on), None
    ends = [recorded.get(f"{name}_{end}") for end in ("low", "high")]
    if level is not None and None not in ends:
        if not 0 < level < 1:
            raise ValueError(f"expected.level is {level}; it must lie between 0 and 1")
        interval = ends
        low, high = map(float, ends)  # type: ignore[arg-type]
        promises = [(low + high) / 2, *(min(max(promise, low), high) for promise in promises)]
        expected_se = (high - low) / 2 / NormalDist().inv_cdf((1 + level) / 2)
    # A few queries may show no error at all, and no spread then: it is at least that of errors as they are promised.
    nearest = min(max(min(promises, key=lambda promise: abs(mean - promise)), 0.0), 1.0)
    least = math.sqrt(nearest * (1 - nearest) / len(now)) if name == "error" and np.isin(now, (0, 1)).all() else 0.0
    spread = math.hypot(max(se, least), expected_se)
    gaps = mean - max(promises), min(promises) - mean
    above, below = (_chance(gap - _ROUNDING * abs(mean), spread) for gap in gaps)
    chance = {"p_value": min(1.0, 2 * min(above, below))} if name == "error" else {"p_value": above, "p_below": below}
    return {
        "seen": mean,
        "se": se,
        "expected": float(expected),
        "expected_se": expected_se,
        "interval": interval,
        "level": level if interval else None,
        "tuned": replayed,
        **chance,
    }


def _chance(gap: float, spread: float) -> float:
    """One-sided, how likely chance makes a gap as wide as this, by the normal law; 1 where there is none."""
    if gap <= 0:
        return 1.0
    return math.erfc(gap / spread / math.sqrt(2)) / 2 if spread > 0 else 0.0


def _standard_error(values: np.ndarray, n: int) -> float:
    return float(values.std() / math.sqrt(max(n - 1, 1)))


def _remarks(policy: AnyPolicy, log: Log, shared: Overlap, gain: RetuningGain | None, retuning: bool) -> Iterator[str]:
    if shared:
        yield f"{shared.describe()}, which hides what has changed: check it on fresh queries"
    if not log.complete.all():
        missing = log.n_queries - int(log.complete.sum())
        yield f"{missing:,} of {log.n_queries:,} queries lack the answer of some model, and do not count"
    if retuning and gain is None:
        yield f"whether tuning again would gain was not tested: {why_untested(policy, log)[0]}"
