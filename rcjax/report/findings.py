"""A frontier against one model that answers everything."""

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np

from rcjax._base.wording import Money, between, choose_unit, percent
from rcjax._core.json_values import plain
from rcjax.diagnostics import Diagnosis
from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.targets import Target, TargetName
from rcjax.replaying.beside_reference import beside_reference
from rcjax.replaying.replay import Replay
from rcjax.tuning.select import Selection

_TIES = 1e-9  # sums of money this close are one

_NEARLY = 0.05  # of the queries, up to which a cascade nearly answers as a model that is trusted


@dataclasses.dataclass(frozen=True)
class Against:
    """A frontier against one model that answers everything."""

    model: str
    error: float
    """How often the model is wrong on the log."""
    cost: float
    """Its mean cost, in money per query."""
    at_its_cost: float | None
    """How often the policy for a budget of its cost errs; None where each costs more."""
    at_its_error: float | None
    """What the policy that errs no more often costs; None where each errs more."""


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
    target: Target | None
    """The target that a policy was chosen for, where there is one."""
    drawn: list[dict[str, Any]] | None = None
    """The figures of the diagnosis, where they were drawn meanwhile."""
    command: str | None = None
    """`rcjax tune` with the log and the options by which it was read and tuned here, all but the target; None where no
    command made the report."""
    option: str = ""
    """The target as options of that command, where they tell more than `target`: money for a period."""

    @property
    def chosen(self) -> int:
        """The point to start with: that for the target; without one, the cheapest as good as the baseline, or where
        there is none, that which errs least."""
        return starting_point(self.frontier, self.target, self.against.error)

    @property
    def against(self) -> Against:
        """The comparison with the baseline."""
        return next(comparison for comparison in self.comparisons if comparison.model == self.baseline)

    @property
    def money(self) -> Money:
        """The unit in which people read the costs."""
        return choose_unit([comparison.cost for comparison in self.comparisons])

    def headline(self) -> str:
        """What the frontier is worth against the baseline, with intervals, and what the policy for the target is."""
        against = self.against
        start = f"Asking {against.model} for everything {self._does(percent(against.error))}"
        start += f", at {self.money.full(against.cost)}."
        if self._is_reference:
            start = f"Asking {against.model} for everything costs {self.money.full(against.cost)}."
        aim = [] if self.target is None else [self._for_target(self.target)]
        besides = self._nearly() if self._is_reference else self._to_be_had()
        return " ".join([start, *aim, besides])

    @property
    def _noun(self) -> str:
        return self.log.counted.noun

    def _does(self, share: str) -> str:
        return self.log.counted.does(share)

    @property
    def _is_reference(self) -> bool:
        """Whether the baseline is what answers are held to, from which it does not differ."""
        reference = self.log.reference
        return reference is not None and reference.counts == "differences" and reference.model == self.baseline

    def _nearly(self) -> str:
        """What it costs to answer nearly as the baseline does, in a sentence."""
        errors, costs = np.asarray(self.frontier.error, float), np.asarray(self.frontier.cost, float)
        near = np.where((errors <= _NEARLY) & (costs < 0.995 * self.against.cost), costs, np.inf)
        if not np.isfinite(near).any():
            return f"No cascade of these models is expected to cost less at {percent(_NEARLY, 0)} {self._noun} or less."
        point = np.eye(len(costs))[near.argmin()]
        share = percent(float(point @ costs) / self.against.cost, 0)
        return f"A cascade that {self._does(self._wrong(point))} costs {share} of that: {self._costs(point)}."

    @cached_property
    def beside(self) -> str | None:
        """What the policy that the page starts with does by a reference and by labels, both; None without one."""
        beside = beside_reference(self.frontier.point(self.chosen), self.judged)
        return None if beside is None else f"The policy that this page starts with {beside.describe()}."

    def _to_be_had(self) -> str:
        """What cascades are worth against the baseline, in a sentence."""
        against, frontier, gains = self.against, self.frontier, []
        if against.at_its_cost is not None and against.error > 0:
            fewer, same = 1 - against.at_its_cost / against.error, frontier.shares(_with_ties("budget", against.cost))
            if fewer >= 0.005:
                gains.append(f"have {percent(fewer, 0)} less {self._noun} at today’s spend: {self._wrong(same)}")
        if against.at_its_error is not None:
            share = against.at_its_error / against.cost if against.cost > 0 else 1.0
            same = frontier.shares(_with_ties("max_error", against.error))
            if share <= 0.995:
                gains.append(f"keep today’s {self._noun} at {percent(share, 0)} of the cost: {self._costs(same)}")
        if gains:
            return f"With a cascade you could {', or '.join(gains)}."
        best = np.eye(len(frontier.lam))[np.argmin(np.asarray(frontier.error, float))]
        cost = float(best @ np.asarray(frontier.cost, float))
        if cost < 0.995 * against.cost:
            share = percent(cost / against.cost, 0)
            return f"The best cascade {self._does(self._wrong(best))}, at {share} of the cost."
        return f"No cascade of these models is expected to do better at its price or its {self._noun}."

    def _for_target(self, target: Target) -> str:
        """What the policy for the target does, beside the baseline, in a sentence."""
        against, chosen = self.against, self.frontier.shares(target)
        error, cost = (float(chosen @ np.asarray(each, float)) for each in (self.frontier.error, self.frontier.cost))
        more = error - against.error
        parts = [f"{percent(cost / against.cost, 0)} of the cost of {against.model}"] if against.cost > 0 else []
        if not self._is_reference:
            than = "" if parts else f" than {against.model}"
            parts.append(f"{100 * abs(more):.1f} points {'more' if more > 0 else 'less'} {self._noun}{than}")
        does = f"{self._does(self._wrong(chosen))}, at {self._costs(chosen, kept=target.name == 'budget')}"
        aim = f"The policy for your target, {target.describe(self.log.counted)}, {does}"
        return f"{aim}: {', '.join(parts)}{self._for_the_same(target.value if target.name == 'budget' else cost)}."

    def _for_the_same(self, money: float) -> str:
        """What the best single model within the money does, the budget if there is one; empty for the baseline."""
        within = [one for one in self.comparisons if one.cost <= money * (1 + _TIES)]
        best = min(within, key=lambda one: one.error, default=self.against)
        if best.model == self.baseline:
            return ""
        figures = f"{self._does(percent(best.error))}, at ${self.money.show(best.cost)}"
        return f"; {best.model}, the best single model for that money, {figures}"

    def _wrong(self, shares: np.ndarray) -> str:
        """The error where points have shares (L,), with its interval, and whether that reaches above today’s."""
        error, bands = float(shares @ np.asarray(self.frontier.error, float)), self.frontier.bands
        if bands is None:
            return percent(error)
        low, high = (shares @ np.asarray(bands.error, float)).tolist()
        unsure = ", not surely less" if error < self.against.error < high else ""
        return f"{percent(error)} ({100 * bands.level:.0f} % interval {between([low, high])} %{unsure})"

    def _costs(self, shares: np.ndarray, kept: bool = False) -> str:
        """The cost where points have shares (L,), with its interval, if it is not `kept` by following the bill."""
        cost, bands = f"${self.money.show(float(shares @ np.asarray(self.frontier.cost, float)))}", self.frontier.bands
        if bands is None or kept:
            return cost
        ends = " to ".join(f"${self.money.show(end)}" for end in (shares @ np.asarray(bands.cost, float)).tolist())
        return f"{cost} ({100 * bands.level:.0f} % interval {ends})"

    @property
    def labels(self) -> int:
        """How many queries have an answer with a label by hand."""
        return int((np.asarray(self.log.labelled) & np.asarray(self.log.answered)).any(1).sum())

    def more_labels(self) -> str:
        """How many labels would halve the interval of the error of the policy to start with, in a sentence."""
        bands = self.frontier.bands
        assert bands is not None
        ends = between(np.asarray(bands.error, float)[self.chosen].tolist())
        more = f"{labels_to_halve(self.labels):,} labelled queries, four times as many as now"
        return f"{more}, would halve the interval of the {self._noun} of the policy to start with, {ends} %."

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "models": list(self.frontier.models),
            "baseline": self.baseline,
            "headline": self.headline(),
            "counted": self.log.counted.noun,
            **({} if self.log.reference is None else {"beside": self.beside}),
            "comparisons": [plain(dataclasses.asdict(comparison)) for comparison in self.comparisons],
            "frontier": self.frontier.to_json()["frontier"],
            "target": {} if self.target is None else self.target.to_json(),
            "chosen": self.chosen,
            "shares": np.asarray(self.shares).tolist(),
            "diagnosis": self.diagnosis.to_json(),
            "labels": {"queries": self.labels, "to_halve": labels_to_halve(self.labels)},
        }


def labels_to_halve(labels: int) -> int:
    """How many labels make an interval half as wide as so many do, as its width falls with 1/√n.

    >>> labels_to_halve(300)
    1200
    """
    return 4 * labels


def starting_point(frontier: Frontier, target: Target | None, error: float) -> int:
    """The point to start with: for the target; without one, the cheapest that errs no more often, else the best."""
    if target:
        return frontier.choose(**target.to_json())
    errors, costs = np.asarray(frontier.error, float), np.asarray(frontier.cost, float)
    good = errors <= error + _TIES
    return int(np.argmin(np.where(good, costs, np.inf) if good.any() else errors))


def compare(frontier: Frontier, j: int, error: float) -> Against:
    """A frontier against its model j alone, which errs so often."""
    cost = float(np.asarray(frontier.model.cost)[j])

    def met(target: Target, figures: Any) -> float | None:
        try:
            return float(frontier.shares(target) @ np.asarray(figures, float))
        except InfeasibleError:
            return None

    at_cost, at_error = _with_ties("budget", cost), _with_ties("max_error", error)
    return Against(frontier.models[j], error, cost, met(at_cost, frontier.error), met(at_error, frontier.cost))


def _with_ties(name: TargetName, value: float) -> Target:
    """A limit that a policy of the same figure keeps to."""
    return Target(name, value * (1 + _TIES))
