"""How a log is tuned: one description, from the command line to the choice, and from a policy's record back to it.

What goes together with what is decided here, and nowhere else. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rcjax.policy.calibrations import Transform
from rcjax.policy.following import Period
from rcjax.policy.targets import SecondsLimit, Target, TargetName


class SpecError(ValueError):
    """Options of a `Spec` that do not go together.

    >>> problem = SpecError("confidence", "needs {max_error} or {budget}")
    >>> print(problem, problem.say("--{}".format), sep="; ")
    confidence needs max_error or budget; needs --max_error or --budget
    """

    def __init__(self, option: str, what: str) -> None:
        super().__init__(f"{option} {_named(what, str)}")
        self.option = option
        self._what = what

    def say(self, name: Callable[[str], str]) -> str:
        """What is wrong with the option, with the other options as `name` has them."""
        return _named(self._what, name)


def _named(what: str, name: Callable[[str], str]) -> str:
    """The text with the options in braces as `name` has them."""
    return re.sub(r"\{(\w+)\}", lambda option: name(option[1]), what)


@dataclass(frozen=True)
class Spec:
    """How a log is tuned, whichever log.

    >>> Spec((Target("budget", 1e-4),), confidence=0.95).check().aim
    'budget'
    >>> Spec((Target("lam", 300.0),), confidence=0.95).check()
    Traceback (most recent call last):
    ...
    rcjax.policy.spec.SpecError: confidence needs max_error or budget
    """

    targets: tuple[Target, ...] = ()
    """What the policy is for, one at most; without one there is a frontier, and no policy."""
    search: Any = "selected"
    """By the labels ("selected"), or by the model: "all", "full", "adaptive", or cascades by their models' names."""
    chain: Literal["exact", "paper"] = "exact"
    """How the model takes confidences along a cascade to depend on each other."""
    fit: Mapping[str, Any] = field(default_factory=dict)
    """Options of `rcjax.fit`, for a search by the model."""
    transform: Transform | Literal["auto"] = "auto"
    """Of raw confidences."""
    abstain_price: float | None = None
    """What a refusal costs, in errors; None: models may not refuse."""
    confidence: float | None = None
    """That of the guarantee; None for none."""
    judged: bool = False
    """Whether judges' verdicts count for the guarantee, corrected by the labels by hand."""
    intervals: bool = True
    """Whether to draw intervals around the frontier."""
    second_cost: float = 0.0
    """What a second of waiting is worth, in money; costs count it."""
    max_seconds: SecondsLimit | None = None
    """How long queries may wait; None: as long as it takes."""
    follows: bool = True
    """Whether a service moves along the policy's ladder, so as to keep to a budget."""
    period: Period | None = None
    """Money for a period, of which the budget was made; None: the budget is for each query."""

    @property
    def aim(self) -> TargetName:
        """The kind of target that policies are chosen for; without one, a budget."""
        return self.targets[0].name if self.targets else "budget"

    @property
    def target(self) -> dict[str, float]:
        """The targets as provenance keeps them, by name."""
        return {target.name: target.value for target in self.targets}

    def check(self, held_out: bool = False) -> Spec:
        """The same; SpecError for the first option that does not go with the others.

        Args:
            held_out: whether there are queries of their own for the test of a guarantee.
        """
        for option, what in self._misses(held_out):
            raise SpecError(option, what)
        return self

    def _misses(self, held_out: bool) -> list[tuple[str, str]]:
        limited = any(target.is_limit for target in self.targets)
        sure = self.confidence
        rules = [
            ("copula", "needs {cascade}", bool(self.fit) and self.search == "selected"),
            ("confidence", "needs {max_error} or {budget}", sure is not None and not limited),
            ("confidence", f"must be above 0 and below 1 (100%), not {sure}", sure is not None and not 0 < sure < 1),
            ("no_follow", "needs {budget}", not self.follows and "budget" not in self.target),
            ("held_out", "needs {confidence}", held_out and sure is None),
            ("judged", "needs {confidence}", self.judged and sure is None),
            ("max_seconds", "is no guarantee: leave {confidence} out", self.max_seconds is not None and bool(sure)),
        ]
        return [(option, what) for option, what, broken in rules if broken]
