"""A guarantee for what is deployed: where on a frontier's ladder a limit on the error is kept, by held-out queries.

What a model predicts may be wrong, and the least of many errors counted on one log is too good to be true. Learn then
Test (Angelopoulos, Bates, Candès, Jordan & Lei 2021, "Learn then Test: Calibrating predictive algorithms to achieve
risk control", arXiv 2110.01052) needs neither the model to be right nor many queries: each position of the ladder has
the null hypothesis that its true error is above the limit, positions are tested from the dearest to the cheapest, an
order that was fixed before the held-out queries were seen, and the first that is not rejected ends the sequence. As
every null is tested at the full level and no test is reached past a true null that was kept, the probability that any
true null is rejected is at most 1 − confidence, whatever the positions have in common: the one that is chosen errs more
often with that probability only.

Each test is a bet on what the queries lost, one after the other (`betting`). At a position a query loses the mean of
what it loses by the rungs on either side, which is what is expected over the lots that choose the rung.
"""

import dataclasses
import math
from pathlib import PurePath
from typing import Any

import numpy as np

from rcjax._core.json_values import plain
from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import with_provenance, with_spec
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target
from rcjax.tuning.betting import last_shown, queries_needed
from rcjax.tuning.evidence import Evidence, HeldOut
from rcjax.tuning.overlap import require_unseen

_STEPS = 4  # of the positions that are tested, from each rung to the next


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A policy, what is guaranteed of it, and what the guarantee rests on.

    The guarantee is `max_error`, with `confidence` over the draw of the held-out queries. The bound tells how much room
    there is: it is at `confidence` for this policy on its own, as if no other had been tested.
    """

    policy: AnyPolicy
    """The policy to deploy, a ladder at the position; its `provenance["guarantee"]` holds the figures below."""
    position: float
    """Its position, from 0, the cheapest rung of the frontier's ladder."""
    n: int
    """Number of held-out queries that count: those that every model that may be asked has answered."""
    errors: float
    """Number of them that the policy answered wrongly, rounded where lots decide which or judges count. Where answers
    have scores, the sum of what it lost, in full scores."""
    refusals: int
    """Number of them that the policy refused to answer; each counts as `abstain_price` errors."""
    error_bound: float
    """Upper confidence limit of the policy's error probability, or where it may refuse, of error +
    abstain_price·abstention."""
    max_error: float
    """The error probability that is guaranteed, refusals counted at their price."""
    confidence: float
    """Probability, at least, with which the guarantee holds."""
    abstain_price: float | None = None
    """What a refusal counts, in errors; None where models may not refuse."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, the policy as its `to_json` has it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain(fields | {"policy": self.policy.to_json()})


def certify(
    frontier: Frontier,
    log: Log,
    *,
    max_error: float,
    confidence: float = 0.95,
    tuned_on: Log | None = None,
    judged: bool = False,
) -> Certificate:
    """The cheapest position on the ladder of a frontier at which held-out queries guarantee a limit on the error.

    With a probability of at least `confidence` over the draw of that log, the policy keeps to the limit in service.
    Nothing is assumed of the model: a bad one makes a dear policy, or none, but not a false promise. Certifying
    several frontiers or limits on one log needs a share of 1 − confidence for each. A budget needs no guarantee: a
    service keeps it by following its bill.

    Args:
        frontier: the frontier to choose from. The rungs of its ladder, and three positions between each two of them,
            are tested, from the most expensive to the cheapest; the cheapest that passes is chosen.
        log: the held-out log, independent of the frontier: of queries drawn as those in service will be, none of which
            had a part in fitting, solving, or choosing among frontiers.
        max_error: the true probability of error is at most this.
        confidence: the probability of the guarantee, in (0, 1).
        tuned_on: the log that the frontier was tuned on: a held-out log that shares queries with it is refused.
            Without it, the queries that the model carries, some hundreds, are compared.
        judged: whether judges' verdicts count, corrected by the labels by hand.

    Tests are by betting on what each query loses, from 0 to 1 (Waudby-Smith & Ramdas 2024): valid with any number of
    queries, for errors, scores, refusals at their price, and what is expected over lots.

    Where answers lack labels, only queries whose answers are all labelled by hand count. With `judged`, all queries do:
    judges and confidences say what to expect of an answer, the labels correct it, and the bet is on the corrected
    outcomes. It needs `tuned_on`, whose labels tell how far judges are right, and holds however wrong they are.

    Where models may refuse to answer, `max_error` is as in `Frontier.policy`: the true error +
    abstain_price·abstention is at most this, so that the error alone is too, and nobody keeps to it by refusing.

    Raises InfeasibleError where not even the most expensive rung passes, with what can be guaranteed instead;
    ValueError for a limit or a confidence out of range, and for `judged` without `tuned_on`; LogError for a log that is
    not held out, and as `replay` does.

    >>> import rcjax
    >>> train, held_out = rcjax.sample_log(900, seed=0).split(1 / 3, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(train))
    >>> certificate = rcjax.certify(frontier, held_out, max_error=0.25)
    >>> certificate.n, certificate.errors / certificate.n < certificate.error_bound <= 0.25
    (600, True)
    >>> certificate.policy.provenance["guarantee"]["confidence"]
    0.95
    """
    for name, value in (("max_error", max_error), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1")
    limit, level = float(max_error), 1 - float(confidence)
    for tuned in (frontier, *([] if tuned_on is None else [tuned_on])):
        require_unseen(log, tuned)
    log = log.select(frontier.models)
    judged = judged and log.hand is not None
    held_out = HeldOut(frontier, log, _with_judges(frontier, log, tuned_on) if judged else None)
    positions = np.arange(_STEPS * (len(held_out.rungs) - 1), -1, -1) / _STEPS
    position = last_shown(positions.tolist(), lambda some: held_out.evidence(some).errs_below(limit, level))
    if position is None:
        raise InfeasibleError(_infeasible(held_out.evidence(positions[:1]), limit, level, frontier.counted.noun))
    spec = Spec(max_error=limit, confidence=confidence, judged=judged)
    policy = with_spec(frontier.ladder(position, Target("max_error", limit)), spec)
    evidence = held_out.evidence([position])
    lost = float(evidence.wrong.sum())
    figures = {
        "n": evidence.wrong.size,
        "errors": lost if held_out.log.scores is not None else round(lost),
        "refusals": round(float(evidence.refused.sum())),
        "error_bound": evidence.error_bound(level, limit),
        "max_error": limit,
        "confidence": float(confidence),
        "abstain_price": frontier.abstain_price,
    }
    tested = held_out.tested.select(frontier.models)
    guarantee = figures | {"source": PurePath(tested.source).name, "digest": tested.digest}
    return Certificate(with_provenance(policy, guarantee=guarantee), position, **figures)


def _with_judges(frontier: Frontier, log: Log, tuned_on: Log | None) -> Log:
    """The log tuned on, which tells how far judges are right; ValueError where it does not."""
    if log.hand is None or tuned_on is None or tuned_on.hand is None or tuned_on.hand.judges != log.hand.judges:
        raise ValueError("judged needs tuned_on, a log with labels by hand of some answers, and the same judges")
    return tuned_on.select(frontier.models)


def _infeasible(first: Evidence, limit: float, level: float, noun: str) -> str:
    """What the first of the sequence, which was fixed beforehand, did, and what that guarantees."""
    rate, refused = float(first.penalty.mean()), round(float(first.refused.sum()))
    did = f"had {100 * rate:.3g} % {noun}"
    did += f" and refused {refused:,}, each counted as {100 * first.price:.4g} %" if refused else ""
    instead = f"at most {math.ceil(1e4 * first.error_bound(level)) / 100:.2f} % {noun}"
    return (
        f"no policy can be guaranteed to have at most {100 * limit:.4g} % {noun} with {100 * (1 - level):.4g} % "
        f"confidence: of {first.wrong.size:,} held-out queries the safest {did}, which guarantees "
        f"{instead}{queries_needed(rate, limit, level, noun)}"
    )
