"""The findings of a report: the tuned policy and its comparison with today's, the checks, and their sentences."""

import dataclasses
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from rcjax._base.codec import written
from rcjax._base.figures import Money, between, capitalised, percent
from rcjax._core.pytrees import plain
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.comparison import Comparison, what_to_do
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, Target, TargetName
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.hull import InfeasibleError
from rcjax.tuning.diagnostics import Diagnosis, PolicyCheck
from rcjax.tuning.replaying.comparing import compare_policy
from rcjax.tuning.replaying.replay import beside_reference
from rcjax.tuning.tune import Tuned

_TIES = 1e-9  # relative difference at which two sums of money count as equal

_FREE = 1e-12  # the budget, in dollars per query, of a policy that costs nothing


@dataclasses.dataclass(frozen=True)
class Against:
    """The comparison of a frontier with one model that answers everything."""

    model: str
    error: float
    """Error of the model on the log."""
    cost: float
    """Mean cost of the model, in dollars per query."""
    at_its_cost: float | None
    """Error of the policy whose budget is the model's cost; None if every policy costs more."""
    at_its_error: float | None
    """Cost of the policy whose limit is the model's error, in dollars per query; None if every policy errs more."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings of a report: the tuned policy, its results on fresh queries, and the checks."""

    tuned: Tuned
    """Result of tuning, with a policy: for the given target, or for at most a point more error than today's."""
    asked: bool
    """Whether a target was given."""
    model: CascadeModel
    """The paper's model of the log, for the checks."""
    comparisons: tuple[Against, ...]
    """Comparisons of the frontier with each model alone, in the order of the models."""
    diagnosis: Diagnosis
    """Diagnosis of the model on the judging log."""
    judged: Log
    """The judging log: fresh queries, or the log itself."""
    fresh: Comparison | None
    """Comparison of the policy with today's on fresh queries; None without fresh queries."""
    drawn: list[dict[str, Any]]
    """Drawings of the diagnosis, in the form of the page's template."""
    check: PolicyCheck | None = None
    """Check of the first policy of the page on fresh queries; None without them, or if they do not suffice."""
    again: str | None = None
    """Commands that tune the first policy of the page, and tune it again on the fresh queries."""
    command: str | None = None
    """`rcjax tune` with the log and its options, except the target; None if no command made the report."""

    @property
    def log(self) -> Log:
        """The log that the policies were tuned on."""
        return self.tuned.log

    @property
    def frontier(self) -> Frontier:
        """The frontier, with bands; L points, k models."""
        return self.tuned.frontier

    @property
    def spec(self) -> Spec:
        """Options of the tuning."""
        return self.tuned.spec

    @property
    def policy(self) -> AnyPolicy:
        """The first policy of the page."""
        assert self.tuned.policy is not None
        return self.tuned.policy

    @property
    def promised(self) -> Comparison:
        """Comparison of the first policy with today's, from the tuning."""
        assert self.tuned.comparison is not None
        return self.tuned.comparison

    @property
    def start(self) -> Target:
        """Target of the first policy of the page."""
        return Target.of(**self.tuned.target)

    @property
    def aim(self) -> str:
        """Target of the first policy in words."""
        if self.spec.period is not None:
            return f"at most {self.spec.period}"
        return self.start.describe(self.log.counted, self.promised.rivals[0].subject)

    def target_of(self, point: int) -> Target:
        """Return the target for which `rcjax tune` chooses a point of the curve: of the given kind, or a budget."""
        kind = self.start.name if self.start.name != "match" else "budget"
        cost, error, lam = (
            float(np.asarray(of)[point]) for of in (self.frontier.cost, self.frontier.penalty, self.frontier.lam)
        )
        values = {"budget": max(cost, _FREE), "max_error": error, "error_cost": 1 / lam, "lam": lam}
        return Target(kind, _rounded(values[kind]) if kind in ("budget", "max_error") else values[kind])

    @property
    def money(self) -> Money:
        """Unit of money on the page."""
        return self.tuned.money

    @property
    def noun(self) -> str:
        """Noun for the counted quantity."""
        return self.log.counted.noun

    def compare(self, policy: AnyPolicy, target: Target) -> Comparison:
        """Compare a policy with today's, on the fresh queries if there are any."""
        if policy is self.policy:
            return self.fresh or self.promised
        if self.fresh is None:
            return self.tuned.compare(policy, target)
        money = target.value if target.name == "budget" else None
        return compare_policy(policy, self.judged, self.spec.today, money=money)

    def headline(self) -> str:
        """Return the advice and the change from today's in sentences, by the fresh queries if there are any."""
        advice = what_to_do(self.policy, self.fresh or self.promised, self.money, self.log.counted, self.spec.match)
        names = ("error", "error_low", "error_high", "level")  # a report has intervals
        error, low, high, level = (float(self.policy.expected[name] or 0.0) for name in names)
        errs = self.log.counted.does(f"{percent(error)} ({100 * level:.0f} % interval {between([low, high])} %)")
        certificate = self.tuned.certificate
        noun = self.log.counted.noun
        guarantee = "" if certificate is None else f" {capitalised(certificate.describe(noun))}."
        if self.fresh is None:
            return f"{capitalised(advice)}. It {errs}.{guarantee}"
        promised = self.promised.headline(self.money, self.log.counted)
        return f"{capitalised(advice)}. As it was tuned, it {promised}, and it {errs}.{guarantee}"

    @cached_property
    def beside(self) -> str | None:
        """Sentence on the first policy by the reference, and by labels if there are any; None without a reference."""
        beside = beside_reference(self.policy, self.judged)
        return None if beside is None else f"The policy that this page starts with {beside.describe()}."

    @property
    def tried(self) -> str:
        """Sentence on the promise of all policies on held-out queries; empty if it was not tested."""
        diagnosis = self.diagnosis
        if diagnosis.promise is None:
            return ""
        gaps = f"{diagnosis.promise.describe()}, mean over the curve"
        if diagnosis.held_out:
            return f"On {diagnosis.n:,} fresh queries the {self.noun} of the curve’s policies was {gaps}."
        return (
            f"The promise was tried: the {self.noun} of policies tuned in the same way on four fifths of the log was, "
            f"on the fifth left out, {gaps}. No such trial can show that future queries are harder than the log; "
            "only fresh ones can (rcjax report --test)."
        )

    @property
    def judged_by(self) -> str:
        """Description of the queries that the checks judge by."""
        if self.diagnosis.held_out:
            return f"{PurePath(self.judged.source).name}, {self.diagnosis.n:,} queries that the tuning has not seen"
        return f"{self.diagnosis.n:,} queries of the log itself, each by a model fitted to the others, in five folds"

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "models": list(self.frontier.models),
            "headline": self.headline(),
            "comparison": written(self.promised),
            "fresh": None if self.fresh is None else written(self.fresh),
            "counted": self.noun,
            **({} if self.log.reference is None else {"beside": self.beside}),
            "comparisons": [plain(dataclasses.asdict(comparison)) for comparison in self.comparisons],
            "frontier": self.frontier.to_json()["frontier"],
            "target": self.spec.target if self.asked else {},
            "expected": plain(dict(self.policy.expected)),
            "check": self.check and self.check.to_json(),
            "diagnosis": self.diagnosis.to_json(),
        }


def _rounded(limit: float) -> float:
    """Round a limit to seven digits, so that it does not become smaller."""
    return float(f"{limit * (1 + 1e-6):.7g}")


def expected_for(frontier: Frontier, name: TargetName, limit: float) -> tuple[float, float] | None:
    """Return (error, cost) of the policy for a limit; a policy exactly at the limit is feasible. None: infeasible."""
    try:
        shares = frontier.shares(Target(name, limit * (1 + _TIES)))
    except InfeasibleError:
        return None
    error, cost = (float(shares @ np.asarray(figure, float)) for figure in (frontier.error, frontier.cost))
    return error, cost


def compare(frontier: Frontier, j: int, error: float) -> Against:
    """Compare a frontier with its model j alone, whose error is given."""
    cost = float(np.asarray(frontier.model.cost)[j])
    at_cost = expected_for(frontier, "budget", cost) if cost > 0 else None
    at_error = expected_for(frontier, "max_error", error)
    return Against(
        model=frontier.models[j],
        error=error,
        cost=cost,
        at_its_cost=None if at_cost is None else at_cost[0],
        at_its_error=None if at_error is None else at_error[1],
    )
