"""A guarantee for what is deployed: the policy of a frontier that keeps its promise, tested on held-out queries.

What a model predicts may be wrong, and the least of many errors counted on one log is too good to be true. Learn then
Test (Angelopoulos, Bates, Candès, Jordan & Lei 2021, "Learn then Test: Calibrating predictive algorithms to achieve
risk control", arXiv 2110.01052) needs neither the model to be right nor many queries: each policy has the null
hypothesis that its true error is above the target, the policies are tested in an order that was fixed before the
held-out queries were seen, and the first that is not rejected ends the sequence. As every null is tested at the full
level and no test is reached past a true null that was kept, the probability that any true null is rejected is at most
1 − confidence, whatever the policies have in common: the one that is chosen errs more often with that probability only.

Everything here is numpy in float64, whatever jax's float type is; only the replay is jax's.
"""

import dataclasses
import math
from functools import partial
from pathlib import PurePath
from typing import Any

import jax.numpy as jnp
import numpy as np

from rcjax._core.json_values import plain
from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.hull import pareto
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import labelled_by_hand
from rcjax.policy.policy import Policy
from rcjax.policy.record import with_record
from rcjax.replaying.replay import replay
from rcjax.replaying.waiting import as_tuned
from rcjax.tuning.betting import BoundedLosses, judged_losses, scored_losses
from rcjax.tuning.evidence import Evidence, evidence_of
from rcjax.tuning.overlap import overlap, overlap_with_tuned, require_unseen
from rcjax.tuning.p_values import last_shown, queries_needed


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A policy, what is guaranteed of it, and what the guarantee rests on.

    The guarantee is `max_error`, `max_cost` or both, with `confidence` over the draw of the held-out queries. The two
    bounds tell how much room there is: each is at `confidence` for this policy on its own, as if no other had been
    tested, and does not count that the policy was chosen by the same queries.
    """

    policy: Policy
    """The policy to deploy; its `provenance["guarantee"]` holds the figures below."""
    index: int
    """Its position on the frontier."""
    n: int
    """Number of held-out queries: those that every model that may be asked has answered."""
    errors: float
    """Number of them that the policy answered wrongly; rounded, where lots decide which. Where answers have scores, the
    sum of what it lost, in full scores."""
    refusals: int
    """Number of them that the policy refused to answer; each counts as `abstain_price` errors."""
    cost: float
    """Its mean cost on them, in money per query, each answer at the mean cost that the frontier's model has for it."""
    p_value: float
    """Probability of evidence as good as this, at most, if the policy did not keep the targets: the largest p-value."""
    error_bound: float
    """Upper confidence limit of the policy's error probability (Clopper & Pearson 1934, one-sided), or where it may
    refuse, of error + abstain_price·abstention (see `bounded_mean_p_value`)."""
    cost_bound: float
    """Upper confidence limit of the policy's expected cost per query, see `bounded_mean_p_value`."""
    max_error: float | None
    """The error probability that is guaranteed, refusals counted at their price; None where no target was given."""
    max_cost: float | None
    """The expected cost per query that is guaranteed; None where no target was given."""
    confidence: float
    """Probability, at least, with which the guarantee holds."""
    abstain_price: float | None = None
    """What a refusal counts, in errors; None where models may not refuse."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, the policy as `Policy.to_json` has it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain(fields | {"policy": self.policy.to_json()})


def certify(
    frontier: Frontier,
    log: Log,
    *,
    max_error: float | None = None,
    max_cost: float | None = None,
    confidence: float = 0.95,
    tuned_on: Log | None = None,
    judged: bool = False,
) -> Certificate:
    """The best policy of a frontier of which a log of held-out queries guarantees the targets.

    With a probability of at least `confidence` over the draw of that log, the policy keeps the targets in service.
    Nothing is assumed of the model: a bad one makes a dear policy, or none, but not a false promise. Certifying
    several frontiers or targets on one log needs a share of 1 − confidence for each.

    Args:
        frontier: the frontier to choose from.
        log: the held-out log, independent of the frontier: of queries drawn as those in service will be, none of which
            had a part in fitting, solving, or choosing among frontiers.
        max_error: the true probability of error is at most this. Tested from the policy of least predicted error to
            the cheapest; the cheapest that passes is chosen. p-value: the exact binomial tail of the errors counted.
        max_cost: the true mean cost is at most this, in money per query. Tested from the cheapest policy to that of
            least predicted error; the last that passes is chosen. p-value: `bounded_mean_p_value`.
        confidence: the probability of the guarantee, in (0, 1).
        tuned_on: the log that the frontier was tuned on: a held-out log that shares queries with it is refused.
            Without it, the queries that the model carries, some hundreds, are compared.
        judged: whether judges' verdicts count, corrected by the labels by hand.

    With several targets, a policy passes by the largest of the p-values. Tested from the policy that is most likely to
    pass, by its predicted figures, to the cheapest; the cheapest that passes is chosen.

    Where answers lack labels, only queries whose answers are all labelled by hand count. With `judged`, all queries do:
    judges and confidences say what to expect of an answer, the labels correct it, and the p-value is that of a bet on
    the corrected outcomes (`rcjax.tuning.betting`). It needs `tuned_on`, whose labels tell how far judges are right,
    and holds however wrong they are.

    Where answers have scores, `max_error` is of the score that is lost, and the p-value is that of a bet on what each
    query lost, from 0 to 1: exact in finite samples, whatever the scores are.

    Costs are as the model predicts them: each answer at its model's mean cost, which is taken as a known constant
    (`frontier.model.cost`). So what is tested is how often each model is asked; how long the questions and the answers
    of the future are is not guaranteed.

    Where models may refuse to answer, `max_error` is as in `Frontier.policy`: the true error +
    abstain_price·abstention is at most this, so that the error alone is too, and nobody keeps to it by refusing. The
    p-value of a policy that may refuse is `bounded_mean_p_value`, as what a query counts is no longer 0 or 1. So it is,
    for error and cost, where a policy passes on a share of the queries of an interval: each counts with what
    is expected over its lots, and the number of errors that is told is rounded.

    Policies that another is predicted to beat in both error and cost are left out. All others are tested, from one
    start: neighbours pass or fail together, so that neither a coarser sequence nor several starts that share the level
    gained anything on real logs (`python -m benchmarks.guarantee`).

    Raises InfeasibleError where not even the first policy passes, with what can be guaranteed instead; ValueError for
    no target, or one out of range, and for `judged` without `tuned_on`; LogError for a log that is not held out, and
    as `replay` does.

    >>> import rcjax
    >>> train, held_out = rcjax.sample_log(900, seed=0).split(1 / 3, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(train))
    >>> certificate = rcjax.certify(frontier, held_out, max_error=0.25)
    >>> certificate.n, certificate.errors / certificate.n < certificate.error_bound <= 0.25
    (600, True)
    >>> certificate.policy.provenance["guarantee"]["confidence"]
    0.95
    """
    targets = _Targets.check(max_error, max_cost, confidence)
    require_unseen(log, overlap_with_tuned(log, frontier))
    if tuned_on is not None:
        require_unseen(log, overlap(log, tuned_on))
    log = log.select(frontier.models)
    losses, scored = None, log.scores is not None
    if judged and log.hand is not None:
        losses = _judged(frontier, log, tuned_on)
    else:
        log = labelled_by_hand(log)
        losses = scored_losses(frontier, log, frontier.abstain_price or 0.0) if scored else None
    replayed = replay(frontier, at_model_costs(frontier, log))
    order = _sequence(frontier, replayed.n, targets, scored)
    figures = (np.asarray(figure, float) for figure in (replayed.error, replayed.abstention, replayed.cost))
    evidence = evidence_of(frontier, replayed.n, *figures, scored=scored)
    if losses is not None:
        evidence = [dataclasses.replace(one, bet=partial(losses.p_value, row)) for row, one in enumerate(evidence)]
    chosen = last_shown(order, lambda index: targets.p_value(evidence[index]), targets.level)
    if chosen is None:
        raise InfeasibleError(_infeasible(evidence[order[0]], targets, frontier.counted.noun))
    policy = frontier.point(chosen, targets.by_name)
    policy = with_record(policy, judged=True) if judged else policy
    return _certificate(policy, chosen, evidence[chosen], targets, log, frontier.abstain_price)


def _judged(frontier: Frontier, log: Log, tuned_on: Log | None) -> BoundedLosses:
    """The losses of the policies where judges count. ValueError without a log that tells how far they are right."""
    assert log.hand is not None
    if tuned_on is None or tuned_on.hand is None or tuned_on.hand.judges != log.hand.judges:
        raise ValueError("judged needs tuned_on, a log with labels by hand of some answers, and the same judges")
    price = frontier.abstain_price or 0.0
    return judged_losses(frontier, log.take(log.complete), tuned_on.select(frontier.models), price)


def at_model_costs(frontier: Frontier, log: Log) -> Log:
    """The log with each answer at the cost that the frontier's model has for it, in money per query.

    Replayed on it, a policy costs what the model's constants say of the paths that the queries took.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[1.0, 100.0, 10_000.0])
    >>> bool(jnp.allclose(at_model_costs(frontier, log.take([5])).cost, frontier.model.cost))
    True
    """
    log = as_tuned(frontier, log)
    costs = dict(zip(frontier.models, np.asarray(frontier.model.cost, float).tolist(), strict=True))
    cost = jnp.asarray([costs.get(name, 0.0) for name in log.models], log.query_cost.dtype)
    return dataclasses.replace(log, query_cost=jnp.broadcast_to(cost, log.query_cost.shape), cost=cost)


@dataclasses.dataclass(frozen=True)
class _Targets:
    """What is to be guaranteed; None where there is no such target."""

    max_error: float | None
    max_cost: float | None
    confidence: float

    @classmethod
    def check(cls, max_error: Any, max_cost: Any, confidence: Any) -> "_Targets":
        """The targets as floats; ValueError for none, or one out of range."""
        if max_error is None and max_cost is None:
            raise ValueError("give max_error, max_cost or both: there is nothing to guarantee")
        for name, value in (("max_error", max_error), ("confidence", confidence)):
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name} is {value}; it must lie between 0 and 1")
        if max_cost is not None and not 0 < max_cost < math.inf:
            raise ValueError(f"max_cost is {max_cost}; it must be a positive number")
        error, cost = (None if value is None else float(value) for value in (max_error, max_cost))
        return cls(error, cost, float(confidence))

    @property
    def by_name(self) -> dict[str, float]:
        """The targets by the names that `Frontier.policy` has for them."""
        both = {"max_error": self.max_error, "budget": self.max_cost}
        return {name: value for name, value in both.items() if value is not None}

    @property
    def level(self) -> float:
        """Probability, at most, of a guarantee that is false."""
        return 1 - self.confidence

    def p_value(self, evidence: Evidence) -> float:
        """Of the null that the policy misses one of the targets: the larger one, as for any union of nulls."""
        by_error = 0.0 if self.max_error is None else evidence.error_p_value(self.max_error)
        by_cost = 0.0 if self.max_cost is None else evidence.cost_p_value(self.max_cost)
        return max(by_error, by_cost)


def _sequence(frontier: Frontier, n: int, targets: _Targets, scored: bool) -> list[int]:
    """Positions of the policies in the order of the tests, which depends on the predictions and n only."""
    cost = np.asarray(frontier.cost, float)
    order = pareto(cost, np.asarray(frontier.penalty, float))[::-1].tolist()
    if not order:
        raise InfeasibleError("the frontier has no policy with a finite predicted error and cost")
    if targets.max_error is None:
        return order[::-1]
    if targets.max_cost is None:
        return order
    error = np.nan_to_num(np.asarray(frontier.error, float))
    abstention = np.zeros_like(error) if frontier.abstention is None else np.asarray(frontier.abstention, float)
    predicted = evidence_of(frontier, n, error, abstention, cost, scored)
    start = int(np.argmin([targets.p_value(predicted[index]) for index in order]))
    return order[start:]


def _certificate(
    policy: Policy, index: int, evidence: Evidence, targets: _Targets, log: Log, abstain_price: float | None
) -> Certificate:
    figures = {
        "n": evidence.n,
        "errors": evidence.errors,
        "refusals": evidence.refusals,
        "cost": evidence.cost,
        "p_value": targets.p_value(evidence),
        "error_bound": evidence.error_bound(targets.level),
        "cost_bound": evidence.cost_bound(targets.level),
        **dataclasses.asdict(targets),
        "abstain_price": abstain_price,
    }
    tested = log.select([name for name in policy.provenance["tuning"]["models"] if name in log.models])
    guarantee = figures | {"source": PurePath(log.source).name, "digest": tested.digest}
    recorded = dataclasses.replace(policy, provenance={**policy.provenance, "guarantee": guarantee})
    return Certificate(recorded, index, **figures)


def _infeasible(first: Evidence, targets: _Targets, noun: str) -> str:
    """What the first policy of the sequence, which was fixed beforehand, did, and what that guarantees."""
    wanted, did, instead, needed = [], [], [], ""
    if targets.max_error is not None:
        wanted.append(f"to have at most {100 * targets.max_error:.4g} % {noun}")
        refused = (
            "" if first.price is None else f" and refused {first.refusals}, each counted as {100 * first.price:.4g} %"
        )
        share = f"{100 * first.penalty:.3g} %"
        did.append(f"had {share} {noun}{refused}")
        instead.append(f"at most {math.ceil(1e4 * first.error_bound(targets.level)) / 100:.2f} % {noun}")
        counted = first.price is None and first.bet is None and first.lost is None
        needed = queries_needed(round(first.errors), first.n, targets.max_error, targets.level, noun) if counted else ""
    if targets.max_cost is not None:
        wanted.append(f"to cost at most {targets.max_cost:.6g} per query")
        did.append(f"cost {first.cost:.6g} per query")
        # So much above the bound that no rounding to six digits puts it below.
        instead.append(f"a cost of at most {first.cost_bound(targets.level) * (1 + 6e-6):.6g}")
    which = "the most promising"
    if targets.max_cost is None:
        which = "the safest"
    elif targets.max_error is None:
        which = "the cheapest"
    return (
        f"no policy can be guaranteed {' and '.join(wanted)} with {100 * targets.confidence:.4g} % confidence: of "
        f"{first.n:,} held-out queries {which} {' and '.join(did)}, which guarantees {', or '.join(instead)}{needed}"
    )
