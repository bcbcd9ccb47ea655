"""A report: the frontier of a log with its intervals beside single models, in words, and how far to trust them."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from rcjax._base.wording import Money, between, choose_unit, figure, percent
from rcjax._core.json_values import plain
from rcjax.diagnostics import Diagnosis, PolicyCheck
from rcjax.diagnostics.model_checks import describe_gaps
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.hull import InfeasibleError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.spec import Spec, Target, TargetName
from rcjax.replaying.figures import beside_reference
from rcjax.replaying.replay import Replay
from rcjax.tuning.comparison import Selection

_TIES = 1e-9  # sums of money this close are one

_NEARLY = 0.05  # of the queries, up to which a cascade nearly answers as a model that is trusted

_SAME = 5e-4  # of errors, below which they are printed alike

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
    """What there is to report. The frontier has bands; L points, k models."""

    log: Log
    """The log that everything was tuned on."""
    model: CascadeModel
    frontier: Frontier
    selection: Selection
    """What cascades were compared by; its frontier is this one without bands."""
    shares: np.ndarray
    """(L, k) of the queries, answered by each model."""
    comparisons: tuple[Against, ...]
    """With every model on its own, in the order of the models."""
    baseline: str
    """The model that the headline compares with."""
    diagnosis: Diagnosis
    """Of the model, on the log that was judged."""
    judged: Log
    """That log: fresh queries, or the log itself."""
    seen: Replay | None
    """The frontier's policies on fresh queries, where there are any."""
    spec: Spec
    """How it was tuned: the target that a policy was chosen for, where there is one."""
    drawn: list[dict[str, Any]]
    """The figures of the diagnosis, as the template of the page takes them."""
    check: PolicyCheck | None = None
    """The verdict on the policy that the page starts with, on fresh queries, where there are any."""
    again: str | None = None
    """The commands that tune the policy of the page, and tune it again on the fresh queries."""
    command: str | None = None
    """`rcjax tune` with the log and the options by which it was read and tuned here, all but the target; None if no
    command made the report."""

    @cached_property
    def target(self) -> Target | None:
        """The target that a policy was chosen for, where there is one."""
        return Target.of(**self.spec.target) if self.spec.target else None

    @property
    def aim(self) -> str:
        """That target in words."""
        if self.spec.period is not None:
            return f"at most {self.spec.period}"
        return "" if self.target is None else self.target.describe(self.log.counted)

    @property
    def start(self) -> Target:
        """The target of the policy that the page starts with: the one asked for; else money enough to do as well as the
        baseline, or if no policy does, the target of the point with the least error."""
        if self.target is not None:
            return self.target
        same = expected_for(self.frontier, "max_error", _NEARLY if self._is_reference else self.against.error)
        if same is None:
            return self.target_of(int(np.asarray(self.frontier.error, float).argmin()))
        return Target("budget", _rounded(max(same[1], _FREE)))

    def target_of(self, point: int) -> Target:
        """The target by which `rcjax tune` comes to a point of the curve, of the kind that errors are corrected for."""
        frontier, kind = self.frontier, self.selection.target
        cost, error, lam = (float(np.asarray(of)[point]) for of in (frontier.cost, frontier.penalty, frontier.lam))
        values = {"budget": max(cost, _FREE), "max_error": error, "error_cost": 1 / lam, "lam": lam}
        return Target(kind, _rounded(values[kind]) if kind in ("budget", "max_error") else values[kind])

    @cached_property
    def expected(self) -> Mapping[str, Any]:
        """The figures of the policy that the page starts with."""
        return self.frontier.policy(**self.start.to_json()).expected

    @property
    def against(self) -> Against:
        """The comparison with the baseline."""
        return next(comparison for comparison in self.comparisons if comparison.model == self.baseline)

    @property
    def money(self) -> Money:
        """The unit in which people read the costs."""
        return choose_unit([comparison.cost for comparison in self.comparisons])

    def headline(self) -> str:
        """What the policy that the page starts with is worth beside the baseline, with its interval."""
        does = "" if self._is_reference else f" {self._does(percent(self.against.error))}, at"
        cost = f"{does or ' costs'} {self._sum(self.against.cost)}"
        return f"Asking {self.baseline} for everything{cost}. {self._worth()}"

    def _sum(self, cost: float, unit: bool = True) -> str:
        """A cost as the headline has it: for the period of the target, or for many queries."""
        period, scale, words = self.spec.period, self.money.scale, f"per {self.money.name} queries"
        if period is not None and self.target is not None:
            scale, words = period.money / self.target.value, f"a {period.every}"
        return f"${figure(scale * cost)}{f' {words}' * unit}"

    @property
    def noun(self) -> str:
        """What is counted."""
        return self.log.counted.noun

    def _does(self, share: str) -> str:
        return self.log.counted.does(share)

    @property
    def _is_reference(self) -> bool:
        """Whether the baseline is what answers are held to, from which it does not differ."""
        reference = self.log.reference
        return reference is not None and reference.counts == "differences" and reference.model == self.baseline

    @cached_property
    def beside(self) -> str | None:
        """What the policy that the page starts with does by a reference and by labels, both; None without one."""
        beside = beside_reference(self.frontier.policy(**self.start.to_json()), self.judged)
        return None if beside is None else f"The policy that this page starts with {beside.describe()}."

    def _worth(self) -> str:
        """What the policy that the page starts with does, beside the baseline, in a sentence."""
        against, expected = self.against, self.expected
        if self.target is None and expected["cost"] >= 0.995 * against.cost:
            return "No cascade of these models is expected to do as well for less money."
        more = expected["error"] - against.error
        share = percent(expected["cost"] / against.cost, 0) if against.cost > 0 else ""
        parts = [f"{share} of the cost of {against.model}"] if share else []
        if not self._is_reference:
            than = "" if parts else f" than {against.model}"
            points = f"{100 * abs(more):.1f} points {'more' if more > 0 else 'less'} {self.noun}{than}"
            parts.append(points if abs(more) >= _SAME else f"the same {self.noun}")
        ends = between([expected["error_low"], expected["error_high"]])
        errs = self._does(f"{percent(expected['error'])} ({100 * expected['level']:.0f} % interval {ends} %)")
        does = f"A policy for {self._sum(expected['cost'])} {errs}"
        if self.target is not None:
            does = f"The policy for your target, {self.aim}, {errs}, at {self._sum(expected['cost'], unit=False)}"
        return f"{does}: {', '.join(parts)}."

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
            "baseline": self.baseline,
            "headline": self.headline(),
            "counted": self.noun,
            **({} if self.log.reference is None else {"beside": self.beside}),
            "comparisons": [plain(dataclasses.asdict(comparison)) for comparison in self.comparisons],
            "frontier": self.frontier.to_json()["frontier"],
            "target": self.spec.target,
            "expected": plain(dict(self.expected)),
            "shares": np.asarray(self.shares).tolist(),
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
