"""A guarantee for what is deployed: the policy of a frontier that keeps its promise, tested on held-out queries.

What a model predicts may be wrong, and the least of many errors counted on one log is too good to be true. Learn then
Test (Angelopoulos, Bates, Candès, Jordan & Lei 2021, "Learn then Test: Calibrating predictive algorithms to achieve
risk control", arXiv 2110.01052) needs neither the model to be right nor many queries: each policy has the null
hypothesis that its true error is above the target, the policies are tested in an order that was fixed before the
held-out queries were seen, and the first that is not rejected ends the sequence. As every null is tested at the full
level and no test is reached past a true null that was kept, the probability that any true null is rejected is at most
1 − confidence, whatever the policies have in common: the one that is chosen errs more often with that probability only.

Each test is a bet on what the queries lost, one after the other (`betting`).
"""

import dataclasses
import math
from pathlib import PurePath
from typing import Any

import numpy as np

from rcjax._core.json_values import plain
from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.hull import pareto
from rcjax.logs.log import Log
from rcjax.policy.policy import Policy
from rcjax.policy.record import with_spec
from rcjax.policy.spec import Spec
from rcjax.tuning.betting import last_shown, queries_needed
from rcjax.tuning.evidence import Evidence, HeldOut
from rcjax.tuning.overlap import overlap, require_unseen


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A policy, what is guaranteed of it, and what the guarantee rests on.

    The guarantee is `max_error` or `max_cost`, with `confidence` over the draw of the held-out queries. The two bounds
    tell how much room there is: each is at `confidence` for this policy on its own, as if no other had been tested.
    """

    policy: Policy
    """The policy to deploy; its `provenance["guarantee"]` holds the figures below."""
    index: int
    """Its position on the frontier."""
    n: int
    """Number of held-out queries that count: those that every model that may be asked has answered."""
    errors: float
    """Number of them that the policy answered wrongly, rounded where lots decide which or judges count. Where answers
    have scores, the sum of what it lost, in full scores."""
    refusals: int
    """Number of them that the policy refused to answer; each counts as `abstain_price` errors."""
    cost: float
    """Its mean cost on them, in money per query, each answer at the mean cost that the frontier's model has for it."""
    error_bound: float
    """Upper confidence limit of the policy's error probability, or where it may refuse, of error +
    abstain_price·abstention."""
    cost_bound: float
    """Upper confidence limit of the policy's expected cost per query."""
    max_error: float | None
    """The error probability that is guaranteed, refusals counted at their price; None where a cost is."""
    max_cost: float | None
    """The expected cost per query that is guaranteed; None where an error is."""
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
    """The best policy of a frontier of which a log of held-out queries guarantees the target.

    With a probability of at least `confidence` over the draw of that log, the policy keeps the target in service.
    Nothing is assumed of the model: a bad one makes a dear policy, or none, but not a false promise. Certifying
    several frontiers or targets on one log needs a share of 1 − confidence for each.

    Args:
        frontier: the frontier to choose from.
        log: the held-out log, independent of the frontier: of queries drawn as those in service will be, none of which
            had a part in fitting, solving, or choosing among frontiers.
        max_error: the true probability of error is at most this. Tested from the policy of least predicted error to
            the cheapest; the cheapest that passes is chosen.
        max_cost: in place of that, the true mean cost is at most this, in money per query. Tested from the cheapest
            policy to that of least predicted error; the last that passes is chosen.
        confidence: the probability of the guarantee, in (0, 1).
        tuned_on: the log that the frontier was tuned on: a held-out log that shares queries with it is refused.
            Without it, the queries that the model carries, some hundreds, are compared.
        judged: whether judges' verdicts count, corrected by the labels by hand.

    Tests are by betting on what each query loses, from 0 to 1 (Waudby-Smith & Ramdas 2024): valid with any number of
    queries, for errors, scores, refusals at their price, money, and what is expected over lots.

    Where answers lack labels, only queries whose answers are all labelled by hand count. With `judged`, all queries do:
    judges and confidences say what to expect of an answer, the labels correct it, and the bet is on the corrected
    outcomes. It needs `tuned_on`, whose labels tell how far judges are right, and holds however wrong they are.

    Costs are as the model predicts them: each answer at its model's mean cost, which is taken as a known constant
    (`frontier.model.cost`). So what is tested is how often each model is asked; how long the questions and the answers
    of the future are is not guaranteed.

    Where models may refuse to answer, `max_error` is as in `Frontier.policy`: the true error +
    abstain_price·abstention is at most this, so that the error alone is too, and nobody keeps to it by refusing.

    Policies that another is predicted to beat in both error and cost are left out. All others are tested, from one
    start: neighbours pass or fail together.

    Raises InfeasibleError where not even the first policy passes, with what can be guaranteed instead; ValueError for
    no target, two, or one out of range, and for `judged` without `tuned_on`; LogError for a log that is not held out,
    and as `replay` does.

    >>> import rcjax
    >>> train, held_out = rcjax.sample_log(900, seed=0).split(1 / 3, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(train))
    >>> certificate = rcjax.certify(frontier, held_out, max_error=0.25)
    >>> certificate.n, certificate.errors / certificate.n < certificate.error_bound <= 0.25
    (600, True)
    >>> certificate.policy.provenance["guarantee"]["confidence"]
    0.95
    """
    target = _Target.check(max_error, max_cost, confidence)
    require_unseen(log, overlap(log, frontier))
    if tuned_on is not None:
        require_unseen(log, overlap(log, tuned_on))
    log = log.select(frontier.models)
    judged = judged and log.hand is not None
    held_out = HeldOut(frontier, log, _with_judges(frontier, log, tuned_on) if judged else None)
    order = _sequence(frontier, target)
    chosen = last_shown(order, lambda some: target.kept(held_out.evidence(some)))
    if chosen is None:
        raise InfeasibleError(_infeasible(held_out.evidence(order[:1]), target, frontier))
    policy = frontier.point(chosen, target.by_name)
    policy = with_spec(policy, Spec(**target.by_name, confidence=target.confidence, judged=judged))
    return _certificate(policy, chosen, held_out, target)


def _with_judges(frontier: Frontier, log: Log, tuned_on: Log | None) -> Log:
    """The log tuned on, which tells how far judges are right; ValueError where it does not."""
    if log.hand is None or tuned_on is None or tuned_on.hand is None or tuned_on.hand.judges != log.hand.judges:
        raise ValueError("judged needs tuned_on, a log with labels by hand of some answers, and the same judges")
    return tuned_on.select(frontier.models)


@dataclasses.dataclass(frozen=True)
class _Target:
    """What is to be guaranteed: a limit on the error or on the cost."""

    limit: float
    of_error: bool
    confidence: float

    @classmethod
    def check(cls, max_error: float | None, max_cost: float | None, confidence: float) -> "_Target":
        """The target; ValueError for none, two, or one out of range."""
        if (max_error is None) == (max_cost is None):
            raise ValueError("give max_error or max_cost, one of the two: what is to be guaranteed")
        for name, value in (("max_error", max_error), ("confidence", confidence)):
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name} is {value}; it must lie between 0 and 1")
        if max_cost is not None and not 0 < max_cost < math.inf:
            raise ValueError(f"max_cost is {max_cost}; it must be a positive number")
        limit = max_cost if max_error is None else max_error
        return cls(float(limit), max_error is not None, float(confidence))  # type: ignore[arg-type] - one of them

    @property
    def by_name(self) -> dict[str, Any]:
        """The target by the name that `Frontier.policy` has for it."""
        return {"max_error" if self.of_error else "budget": self.limit}

    @property
    def level(self) -> float:
        """Probability, at most, of a guarantee that is false."""
        return 1 - self.confidence

    def kept(self, evidence: Evidence) -> np.ndarray:
        """(m,) which policies are shown to keep it."""
        return (evidence.errs_below if self.of_error else evidence.costs_below)(self.limit, self.level)


def _sequence(frontier: Frontier, target: _Target) -> list[int]:
    """Positions of the policies in the order of the tests, which depends on the predictions only."""
    order = pareto(np.asarray(frontier.cost, float), np.asarray(frontier.penalty, float))[::-1].tolist()
    if not order:
        raise InfeasibleError("the frontier has no policy with a finite predicted error and cost")
    return order if target.of_error else order[::-1]


def _certificate(policy: Policy, index: int, held_out: HeldOut, target: _Target) -> Certificate:
    evidence, limit = held_out.evidence([index]), target.limit
    lost = float(evidence.wrong.sum())
    figures = {
        "n": evidence.wrong.size,
        "errors": lost if held_out.log.scores is not None else round(lost),
        "refusals": round(float(evidence.refused.sum())),
        "cost": float(evidence.cost.mean()),
        "error_bound": evidence.error_bound(target.level, *([limit] if target.of_error else [])),
        "cost_bound": evidence.cost_bound(target.level, *([] if target.of_error else [limit])),
        "max_error": limit if target.of_error else None,
        "max_cost": None if target.of_error else limit,
        "confidence": target.confidence,
        "abstain_price": held_out.frontier.abstain_price,
    }
    tested = held_out.tested.select(
        [name for name in policy.provenance["tuning"]["models"] if name in held_out.tested.models]
    )
    guarantee = figures | {"source": PurePath(tested.source).name, "digest": tested.digest}
    recorded = dataclasses.replace(policy, provenance={**policy.provenance, "guarantee": guarantee})
    return Certificate(recorded, index, **figures)


def _infeasible(first: Evidence, target: _Target, frontier: Frontier) -> str:
    """What the first policy of the sequence, which was fixed beforehand, did, and what that guarantees."""
    noun, needed = frontier.counted.noun, ""
    if target.of_error:
        rate, refused = float(first.penalty.mean()), round(float(first.refused.sum()))
        wanted, which = f"to have at most {100 * target.limit:.4g} % {noun}", "the safest"
        did = f"had {100 * rate:.3g} % {noun}"
        did += f" and refused {refused:,}, each counted as {100 * first.price:.4g} %" if refused else ""
        instead = f"at most {math.ceil(1e4 * first.error_bound(target.level)) / 100:.2f} % {noun}"
        needed = queries_needed(rate, target.limit, target.level, noun)
    else:
        wanted, which = f"to cost at most {target.limit:.6g} per query", "the cheapest"
        did = f"cost {float(first.cost.mean()):.6g} per query"
        # So much above the bound that no rounding to six digits puts it below.
        instead = f"a cost of at most {first.cost_bound(target.level) * (1 + 6e-6):.6g}"
    return (
        f"no policy can be guaranteed {wanted} with {100 * target.confidence:.4g} % confidence: of "
        f"{first.wrong.size:,} held-out queries {which} {did}, which guarantees {instead}{needed}"
    )
