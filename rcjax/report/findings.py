"""A report: what tuning a log came to beside today's, in words, and how far to trust it."""

import dataclasses
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from rcjax._base.codec import written
from rcjax._base.wording import Money, between, capitalised, percent
from rcjax._core.json_values import plain
from rcjax.diagnostics import Diagnosis, PolicyCheck
from rcjax.diagnostics.checks import describe_gaps
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.hull import InfeasibleError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.comparison import Comparison, what_to_do
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Spec, Target, TargetName
from rcjax.replaying.comparing import compare_policy
from rcjax.replaying.figures import beside_reference
from rcjax.tuning.tune import Tuned

_TIES = 1e-9  # sums of money this close are one

_FREE = 1e-12  # a budget for a policy that costs nothing


@dataclasses.dataclass(frozen=True)
class Against:
    """A frontier against one model that answers everything."""

    model: str
    error: float
    """How often the model is wrong on the log."""
    cost: float
    """Its mean cost, in money per query."""
    at_its_cost: float | None
    """How often the policy for a budget of its cost errs; None if each costs more."""
    at_its_error: float | None
    """What the policy that errs no more often costs; None if each errs more."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What there is to report: what tuning came to, how it does on fresh queries, how far to trust it."""

    tuned: Tuned
    """With a policy: for the target asked for, or else for no more than a point more error than today's."""
    asked: bool
    """Whether a target was asked for."""
    model: CascadeModel
    """The paper's model of the log, for the checks."""
    comparisons: tuple[Against, ...]
    """With every model on its own, in the order of the models."""
    diagnosis: Diagnosis
    """Of the model, on the log that was judged."""
    judged: Log
    """That log: fresh queries, or the log itself."""
    fresh: Comparison | None
    """The policy beside today's on fresh queries; None without any."""
    drawn: list[dict[str, Any]]
    """The figures of the diagnosis, as the template of the page takes them."""
    check: PolicyCheck | None = None
    """The verdict on the policy that the page starts with, on fresh queries, where there are any."""
    again: str | None = None
    """The commands that tune the policy of the page, and tune it again on the fresh queries."""
    command: str | None = None
    """`rcjax tune` with the log and the options by which it was read and tuned here, all but the target; None if no
    command made the report."""

    @property
    def log(self) -> Log:
        """The log that everything was tuned on."""
        return self.tuned.log

    @property
    def frontier(self) -> Frontier:
        """The frontier, with bands; L points, k models."""
        return self.tuned.frontier

    @property
    def spec(self) -> Spec:
        """How it was tuned."""
        return self.tuned.spec

    @property
    def policy(self) -> AnyPolicy:
        """The policy that the page starts with."""
        assert self.tuned.policy is not None
        return self.tuned.policy

    @property
    def promised(self) -> Comparison:
        """That policy beside today's, as it was tuned."""
        assert self.tuned.comparison is not None
        return self.tuned.comparison

    @property
    def start(self) -> Target:
        """The target of the policy that the page starts with."""
        return Target.of(**self.tuned.target)

    @property
    def aim(self) -> str:
        """That target in words."""
        if self.spec.period is not None:
            return f"at most {self.spec.period}"
        return self.start.describe(self.log.counted, self.promised.rivals[0].subject)

    def target_of(self, point: int) -> Target:
        """The target by which `rcjax tune` comes to a point of the curve: of the kind asked for, or else a budget."""
        kind = self.start.name if self.start.name != "match" else "budget"
        cost, error, lam = (
            float(np.asarray(of)[point]) for of in (self.frontier.cost, self.frontier.penalty, self.frontier.lam)
        )
        values = {"budget": max(cost, _FREE), "max_error": error, "error_cost": 1 / lam, "lam": lam}
        return Target(kind, _rounded(values[kind]) if kind in ("budget", "max_error") else values[kind])

    @property
    def money(self) -> Money:
        """The unit in which people read the costs."""
        return self.tuned.money

    @property
    def noun(self) -> str:
        """What is counted."""
        return self.log.counted.noun

    def compare(self, policy: AnyPolicy, target: Target) -> Comparison:
        """A policy beside today's: on the fresh queries, where there are any."""
        if policy is self.policy:
            return self.fresh or self.promised
        money = target.value if target.name == "budget" else None
        return compare_policy(policy, self.judged, self.spec.today, money=money, tuned=self.fresh is None)

    def headline(self) -> str:
        """What to do, and what that changes beside today's: by the fresh queries, where there are any."""
        said = what_to_do(self.policy, self.fresh or self.promised, self.money, self.log.counted, self.spec.match)
        expected = self.policy.expected
        ends = between([expected["error_low"], expected["error_high"]])  # type: ignore[list-item]
        interval = f"{100 * expected['level']:.0f} % interval {ends} %"  # type: ignore[operator]
        errs = self.log.counted.does(f"{percent(expected['error'])} ({interval})")
        sure = "" if self.tuned.promise is None else f" {capitalised(self.tuned.promise)}."
        if self.fresh is None:
            return f"{capitalised(said)}. It {errs}.{sure}"
        promised = self.promised.headline(self.money, self.log.counted)
        return f"{capitalised(said)}. As it was tuned, it {promised}, and it {errs}.{sure}"

    @cached_property
    def beside(self) -> str | None:
        """What the policy that the page starts with does by a reference and by labels, both; None without one."""
        beside = beside_reference(self.policy, self.judged)
        return None if beside is None else f"The policy that this page starts with {beside.describe()}."

    @property
    def tried(self) -> str:
        """How the promise of all policies fared on queries left out; empty where it was not tried."""
        diagnosis = self.diagnosis
        if diagnosis.promise is None:
            return ""
        gaps = f"{describe_gaps(diagnosis.promise)}, mean over the curve"
        if diagnosis.held_out:
            return f"On {diagnosis.n:,} fresh queries the {self.noun} of the curve’s policies was {gaps}."
        return (
            f"The promise was tried: the {self.noun} of policies tuned in the same way on four fifths of the log was, "
            f"on the fifth left out, {gaps}. That queries to come are harder than the log, no such trial can show; "
            "only fresh ones can (rcjax report --test)."
        )

    @property
    def judged_by(self) -> str:
        """Which queries the checks are of, in words."""
        if self.diagnosis.held_out:
            return f"{PurePath(self.judged.source).name}, {self.diagnosis.n:,} queries that the tuning has not seen"
        return f"{self.diagnosis.n:,} queries of the log itself, each by a model fitted to the others, in five folds"

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
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
    """A limit of seven digits, which cut off nothing of it."""
    return float(f"{limit * (1 + 1e-6):.7g}")


def expected_for(frontier: Frontier, name: TargetName, limit: float) -> tuple[float, float] | None:
    """(error, cost) of the policy for a limit, to which one of the same figure keeps, or None."""
    try:
        shares = frontier.shares(Target(name, limit * (1 + _TIES)))
    except InfeasibleError:
        return None
    error, cost = (float(shares @ np.asarray(figure, float)) for figure in (frontier.error, frontier.cost))
    return error, cost


def compare(frontier: Frontier, j: int, error: float) -> Against:
    """A frontier against its model j alone, which errs so often."""
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
