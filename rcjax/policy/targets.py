"""What a policy is chosen for: a budget, an error, what an error costs, or λ; and how long queries may wait.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rcjax._base.wording import choose_unit
from rcjax.policy.counted import ERRORS, Counted

TargetName = Literal["budget", "max_error", "error_cost", "lam"]

TARGETS = get_args(TargetName)


@dataclass(frozen=True, slots=True)
class Target:
    """One target; ValueError for a name that is none, or a value that makes no sense.

    - `budget`: least error at an expected cost per query of at most so much;
    - `max_error`: least cost at an error probability of at most so much;
    - `error_cost`: least cost plus errors, where one error costs so much (= 1/λ);
    - `lam`: least error + λ·cost.

    >>> print(Target("max_error", 0.05), Target.of(budget=150e-6).to_json())
    at most 5 % error {'budget': 0.00015}
    """

    name: TargetName
    value: float

    def __post_init__(self) -> None:
        if self.name not in TARGETS:
            raise ValueError(f"target {self.name!r} is unknown: give one of {', '.join(TARGETS)}")
        value = float(self.value)
        if not math.isfinite(value) or value < 0 or (self.name == "error_cost" and value == 0):
            raise ValueError(f"{self.name} is {value}; it must be a positive number")
        object.__setattr__(self, "value", value)

    @classmethod
    def of(cls, **values: float | None) -> Target:
        """The one value that is not None, as `Frontier.policy` takes them; ValueError unless there is exactly one."""
        targets = [cls(name, value) for name, value in values.items() if value is not None]  # type: ignore[arg-type]
        if len(targets) != 1:
            raise ValueError(f"give exactly one of {', '.join(TARGETS)}; {len(targets)} were given")
        return targets[0]

    def to_json(self) -> dict[str, float]:
        """As provenance keeps it: one entry, of the target's name."""
        return {self.name: self.value}

    @property
    def is_limit(self) -> bool:
        """Whether it is a limit that can be kept or broken: a budget or an error."""
        return self.name in ("budget", "max_error")

    @property
    def error_cost(self) -> float | None:
        """What one error costs, in money; None for a limit."""
        return {"error_cost": self.value, "lam": 1 / self.value if self.value else None}.get(self.name)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, counted: Counted = ERRORS) -> str:
        """In words, where errors are what is `counted`."""
        if self.name == "max_error":
            return f"at most {100 * self.value:.4g} % {counted.noun}"
        if self.name == "budget":
            return f"at most {choose_unit([self.value]).full(self.value)}"
        return f"{counted.one} costs ${self.value if self.name == 'error_cost' else 1 / self.value:.4g}"


@dataclass(frozen=True, slots=True)
class SecondsLimit:
    """At most so many seconds per query: on average, or with `tail` for 95 % of the queries.

    Raises ValueError for seconds that are not above 0.

    >>> print(SecondsLimit(2.0), SecondsLimit.of("p95=4"), sep="; ")
    at most 2 seconds on average; at most 4 seconds for 95 % of the queries
    """

    seconds: float
    tail: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"max_seconds is {self.seconds}; it must be a number above 0, such as 2, or p95=4")

    @classmethod
    def of(cls, value: Any) -> SecondsLimit:
        """A limit from a number, a text such as `2` or `p95=4`, or itself; ValueError for what is none."""
        if isinstance(value, cls):
            return value
        text = str(value).strip().lower()
        number = text.removeprefix("p95=")
        try:
            return cls(float(number), number != text)
        except ValueError:
            what = "give a number of seconds above 0, such as 2 (on average), or p95=4"
            raise ValueError(f"max_seconds {value!r:.40}: {what}") from None

    @property
    def text(self) -> str:
        """As the command line takes it, and provenance keeps it.

        >>> SecondsLimit(4.0, True).text, SecondsLimit(0.25).text
        ('p95=4', '0.25')
        """
        return f"{'p95=' * self.tail}{self.seconds:.12g}"

    def __str__(self) -> str:
        often = "for 95 % of the queries" if self.tail else "on average"
        return f"at most {self.seconds:.3g} second{'' if self.seconds == 1 else 's'} {often}"
