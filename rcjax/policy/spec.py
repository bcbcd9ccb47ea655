"""The options of a tuning, and their record in the provenance of a policy.

A `Target` is the aim of tuning: a budget, an error, a margin beside today's, the cost of an error, or λ. `Spec` has all
options; the command line takes their help from its docstring. Standard library only.

People edit the files of policies by hand. ValueError names the place of an entry that rcjax would not write.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, TypedDict, cast, get_args

from rcjax._base.codec import (
    Amount,
    Names,
    Object,
    Positive,
    Reads,
    Record,
    Share,
    choice,
    fail,
    field_types,
    not_empty,
    read_fields,
    read_value,
    require,
    require_keys,
    require_subset,
    to_json_value,
)
from rcjax._base.figures import Money, choose_unit, format_points
from rcjax._base.tokens import PRICES
from rcjax.policy.comparison import COMPARISON
from rcjax.policy.decisions import Transform
from rcjax.policy.error_kind import ERRORS, ErrorKind
from rcjax.policy.ladder import Period, Queries, map_rungs, policy_from_json, with_provenance
from rcjax.policy.policy import AbstractPolicy, Policy, TargetName

TARGETS = get_args(TargetName)


@dataclass(frozen=True, slots=True)
class Target:
    """The aim of tuning; ValueError for an unknown name, or an impossible value.

    - `budget`: least error at an expected cost of at most this value, in dollars per query; 0: of the free models;
    - `max_error`: least cost at an error probability of at most this value;
    - `match`: least cost at an error probability of at most today's plus this value;
    - `error_cost`: least cost plus errors, at this price of an error in dollars (= 1/λ);
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
            least = "above 0" if self.name == "error_cost" else "0 or more"
            raise ValueError(f"{self.name} is {value}; it must be {least}, and finite")
        object.__setattr__(self, "value", value)

    @classmethod
    def of(cls, **values: float | None) -> Target:
        """Build the target from keywords, of which exactly one is not None; ValueError otherwise."""
        targets = [cls(cast(TargetName, name), value) for name, value in values.items() if value is not None]
        if len(targets) != 1:
            raise ValueError(f"give exactly one of {', '.join(values or TARGETS)}; {len(targets)} were given")
        return targets[0]

    def to_json(self) -> dict[str, float]:
        """Return the target as provenance keeps it: one entry, under the target's name."""
        return {self.name: self.value}

    @property
    def is_limit(self) -> bool:
        """Whether the target is a limit: a budget, an error, or a margin above today's."""
        return self.name in ("budget", "max_error", "match")

    @property
    def lam(self) -> float:
        """λ, in errors per dollar; 0 for a limit, which puts no price on money."""
        if self.name == "error_cost":
            return 1 / self.value
        return self.value if self.name == "lam" else 0.0

    @property
    def error_cost(self) -> float | None:
        """Cost of one error in dollars; None for a limit, and at λ = 0, where money does not count."""
        return {"error_cost": self.value, "lam": 1 / self.value if self.value else None}.get(self.name)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, error_kind: ErrorKind = ERRORS, today: str = "today's") -> str:
        """Return the target in words; `today` is the baseline of a margin, in words."""
        if self.name == "max_error":
            return f"at most {100 * self.value:.4g} % {error_kind.noun}"
        if self.name == "match":
            return f"at most {format_points(self.value)} more {error_kind.noun} than {today}"
        if self.name == "budget":
            return f"at most {choose_unit([self.value]).full(self.value)}"
        cost = self.error_cost
        return f"{error_kind.unit} costs {'more than any money' if cost is None else f'${cost:.4g}'}"


@dataclass(frozen=True, slots=True)
class SecondsLimit:
    """A limit on the seconds per query: the mean, or the 95th percentile if `tail` is true.

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
        """Build a limit from a number, a text such as `2` or `p95=4`, or a limit; ValueError for any other value."""
        if isinstance(value, cls):
            return value
        text = str(value).strip().lower()
        number = text.removeprefix("p95=")
        try:
            return cls(float(number), number != text)
        except ValueError:
            advice = "give a number of seconds above 0, such as 2 (on average), or p95=4"
            raise ValueError(f"max_seconds {value!r:.40}: {advice}") from None

    @property
    def text(self) -> str:
        """The limit as the command line takes it, and as provenance keeps it.

        >>> SecondsLimit(4.0, True).text, SecondsLimit(0.25).text
        ('p95=4', '0.25')
        """
        short = f"{self.seconds:.12g}"
        return f"{'p95=' * self.tail}{short if float(short) == self.seconds else repr(self.seconds)}"

    def __str__(self) -> str:
        often = "for 95 % of the queries" if self.tail else "on average"
        return f"at most {self.seconds:.3g} second{'' if self.seconds == 1 else 's'} {often}"


#: The cascades to choose from: a word, or a list of cascades.
CascadeSet = Literal["all", "full", "adaptive"] | Sequence[Sequence[str]]
CASCADE_SETS = ("all", "full", "adaptive")


class _OwnObjective(str):
    """The search of `minimise`; a class of its own, so that no text that a user gives is this search."""


OWN_OBJECTIVE: Any = _OwnObjective("objective")


class SpecError(ValueError):
    """The error for an impossible value of an option of `Spec`, or for options that do not go together.

    >>> problem = SpecError("confidence", "needs {max_error}")
    >>> print(problem, problem.say("--{}".format), sep="; ")
    confidence needs max_error; needs --max_error
    """

    def __init__(self, option: str | None, problem: str) -> None:
        self.option, self._problem = option, problem
        super().__init__(f"{option or ''} {self.say(str)}".lstrip())

    def say(self, name: Callable[[str], str]) -> str:
        """Return the problem with the option, without the option itself; `name` spells the other options."""
        return re.sub(r"\{(\w+)\}", lambda option: name(option[1]), self._problem)


MARGIN = 0.01  # the default target, `match`
_ANY_COST = "1e+12"  # cost of an error, in dollars, at which money hardly counts: λ = 0

#: The entries of provenance that a recorded policy of today's goes without.
_DROPPED = ("kept_sample", COMPARISON, "tuning")


def read_cascades(value: Any, place: str, models: Sequence[str] | None = None) -> CascadeSet:
    """Read a search by the model: a word, or a list of cascades; ValueError for a model that is not in `models`."""
    if isinstance(value, str):
        return value if isinstance(value, _OwnObjective) else choice(value, place, CASCADE_SETS)
    cascades = read_value(Annotated[tuple[Names, ...], not_empty], value, place)
    for i, cascade in enumerate(cascades if models is not None else ()):
        require_subset(cascade, f"{place}[{i}]", models or ())
    return cascades


def _read_cascade(value: Any, place: str) -> CascadeSet:
    """Read a word, the models of one cascade, or a list of cascades as a search by the model."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = tuple(value)
        if value and all(isinstance(name, str) for name in value):
            value = (value,)
        is_nested = all(isinstance(path, list | tuple) for path in value)
        require(is_nested, place, "must be a word, a list of names of models, or a list of such lists", value)
    return read_cascades(value, place)


def _read_seconds_limit(value: Any, place: str) -> SecondsLimit:
    try:
        return SecondsLimit.of(value)
    except ValueError:
        fail(place, "must be a number of seconds, or such as 'p95=4'", value)


def read_today(value: Any, place: str) -> str | AbstractPolicy:
    """Read today's model by its name, or today's policy; ValueError names the place of any other value."""
    if isinstance(value, AbstractPolicy):
        return value
    require(isinstance(value, str | Mapping) and bool(value), place, "must be a model's name or a policy", value)
    return value if isinstance(value, str) else policy_from_json(value)


def _without_records(policy: AbstractPolicy) -> AbstractPolicy:
    """Return the policy without its sample of queries, its comparison and its today's policy, for small records."""

    def kept(rung: Policy) -> Policy:
        tuning = {name: value for name, value in rung.tuning.items() if name != "today" or isinstance(value, str)}
        provenance = {name: value for name, value in rung.provenance.items() if name not in _DROPPED}
        return replace(rung, provenance=provenance | ({"tuning": tuning} if tuning else {}))

    return map_rungs(kept, policy)


def _check_confidence(value: Any, place: str) -> float:
    require(0 < value < 1, place, "must be above 0 and below 1 (100%)", value)
    return value


def _check_margin(value: Any, place: str) -> float:
    require(value < 1, place, "must be below 100 points, such as 0.01 (1%) for one point", value)
    return value


@dataclass(frozen=True)
class Spec:
    """The options of tuning, for any log. At most one target is given: `budget`, `max_error`, `match`, `error_cost`
    or `lam`.

    Args:
        budget: Fewest errors at this expected cost per query.
        max_error: Least money at this share of wrong answers.
        match: Least money at no more than this many points more error than `today`: 1% for one point.
        error_cost: Least money plus errors, at this cost of one wrong answer.
        lam: Least error + λ·cost.
        cascade: Search by the model alone: **all**: the best cascade of any of the models; **full**: every model in
            turn; **adaptive**: skip to a larger model when very unsure; or the models of one cascade. [default: single
            models and pairs by the labels]
        copula: Dependence of the confidences of two models, as `fit` takes it, for a search by the model.
        method: Method of fitting copulas, as `fit` takes it.
        transform: Transform of raw confidences.
        abstain_price: Let the last model abstain, at this cost of an abstention as a share of an error.
        today: The model of LOG, or the policy file, in use today; every policy is compared with it. [default: the
            model with the fewest errors, the cheaper of two that are within a standard error]
        confidence: Guarantee `max_error` or `match` with this probability, by a test on held-out queries.
        judged: Let judges' verdicts count in the test of `confidence`, corrected by the labels by hand. By default only
            labels by hand count.
        intervals: Bootstrap intervals; they take some seconds.
        follows: Let a service move along the policy's ladder to keep to a budget.
        period: Budget for a day, a week or a month, from which `budget` was derived; None: the budget is per query.
        queries: Number of queries in a day, a week or a month: amounts of money are then for that time.
        segment: Column of LOG with segments: each segment of 60 or more queries gets cascades of its own.
        max_seconds: Limit on the time that queries wait: 2 on average, or p95=4 for all but 5 % of them. Needs a column
            seconds or latency_ms.

    Raises SpecError, a ValueError, for two targets, or an impossible value.

    >>> print(Spec(max_error=0.1, confidence=0.95).check().target)
    at most 10 % error
    >>> Spec(lam=300.0, confidence=0.95).check()
    Traceback (most recent call last):
    ...
    rcjax.policy.spec.SpecError: confidence needs max_error or match: a budget is kept by following the bill
    """

    budget: Amount | None = None
    max_error: Amount | None = None
    match: Annotated[Share, _check_margin] | None = None
    today: Annotated[str | AbstractPolicy, Reads(read_today)] | None = None
    error_cost: Positive | None = None
    lam: Amount | None = None
    cascade: Annotated[CascadeSet, Reads(_read_cascade)] | None = None
    copula: str | None = None
    method: Literal["tau", "likelihood"] | None = None
    transform: Literal["auto", Transform] = "auto"
    abstain_price: Amount | None = None
    confidence: Annotated[float, _check_confidence] | None = None
    judged: bool = False
    intervals: bool = True
    follows: bool = True
    period: Period | None = None
    queries: Queries | None = None
    segment: str | None = None
    max_seconds: Annotated[SecondsLimit, Reads(_read_seconds_limit)] | None = None

    def __post_init__(self) -> None:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise SpecError(None, f"give one target, not {' and '.join(f'{{{name}}}' for name in given)}")
        for name, kind in field_types(type(self)).items():
            value = getattr(self, name)
            value = value.item() if hasattr(value, "item") else value  # an array's number
            try:
                object.__setattr__(self, name, read_value(kind, value, name))
            except (TypeError, ValueError) as problem:
                raise SpecError(name, str(problem).removeprefix(name).removeprefix(":").lstrip()) from None

    @property
    def target(self) -> Target | None:
        """The target; None if there is none."""
        given = {name: getattr(self, name) for name in TARGETS if getattr(self, name) is not None}
        return Target.of(**given) if given else None

    @classmethod
    def merge(cls, spec: Spec | None, options: Mapping[str, Any]) -> Spec:
        """Return the options of `spec` with some options replaced; a target replaces the target of `spec`.

        Args:
            spec: the options; None: the defaults.
            options: fields by name. The period of a budget goes with the budget, and so does `follows`.

        >>> Spec.merge(Spec(budget=1e-4, intervals=False), {"max_error": 0.3}).to_json()
        {'max_error': 0.3, 'intervals': False}
        """
        spec, known = spec or cls(), [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                similar = difflib.get_close_matches(name, known, n=1)
                raise TypeError(f"no option {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else ""))
        if any(options.get(name) is not None for name in TARGETS):
            follows = spec.follows or options.get("budget") is None
            spec = replace(spec, **dict.fromkeys(TARGETS), period=None, follows=follows)
        return replace(spec, **options)

    def with_target(self, target: Target) -> Spec:
        """Return the options with another target, without a guarantee, and without a period of the budget."""
        return replace(Spec.merge(self, target.to_json()), confidence=None, judged=False)

    def with_default_target(self, budget: float) -> Spec:
        """Return the options; without a target, add the default: a margin of a point, or the budget for `cascade`.

        >>> print(Spec().with_default_target(1e-3).target, Spec(cascade="full").with_default_target(1e-3).target)
        at most 1 point more error than today's at most $1,000 per million queries
        """
        if self.target is not None:
            return self
        return replace(self, match=MARGIN) if self.cascade is None else replace(self, budget=budget)

    def money(self, costs: Sequence[float]) -> Money:
        """Return the unit of money: for the period of `queries` if it is given, else by the size of the costs."""
        return choose_unit(costs) if self.queries is None else self.queries.money

    def options_for(self, target: Target) -> dict[str, str]:
        """Return a target, `today` and `queries` as options of `rcjax tune`, by name.

        >>> spec = Spec(period=Period(500.0, "month"), today="large")
        >>> spec.options_for(Target("budget", 1e-4)), Spec().options_for(Target("budget", 1.5e-4))
        ({'budget': '500/month', 'today': 'large', 'queries': '5000000/month'}, {'budget': '150/M'})
        >>> spec.options_for(Target("match", 0.01)), Spec().options_for(Target("lam", 150.0))
        ({'match': '1%', 'today': 'large'}, {'error-cost': '0.006666666667'})
        """
        value, period, queries = target.value, self.period, self.queries
        others = {"today": self.today} if isinstance(self.today, str) else {}
        others |= {} if queries is None else {"queries": f"{queries.number:.10g}/{queries.every}"}
        if target.name == "budget" and period is not None and value > 0:  # the queries that the budget came from
            budget = f"{period.money:.10g}/{period.every}"
            return {"budget": budget} | others | {"queries": f"{period.money / value:.10g}/{period.every}"}
        if target.name == "lam":
            return {"error-cost": f"{1 / value:.10g}" if value > 0 else _ANY_COST} | others
        shown = {"budget": f"{1e6 * value:.10g}/M", "match": f"{100 * value:.10g}%"}.get(target.name, f"{value:.10g}")
        return {target.name.replace("_", "-"): shown} | others

    @property
    def is_by_labels(self) -> bool:
        """Whether the search is the default, by labels: it needs no copulas, and its costs are bills."""
        return self.cascade is None

    @property
    def has_own_objective(self) -> bool:
        """Whether the policies minimise an objective of the user's own (`minimise`), which files do not hold."""
        return isinstance(self.cascade, _OwnObjective)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON values: the inverse of `from_json`.

        >>> Spec(budget=1e-4, max_seconds="p95=4").to_json()
        {'budget': 0.0001, 'max_seconds': 'p95=4'}
        """
        given = {entry.name: value for entry in fields(self) if (value := getattr(self, entry.name)) != entry.default}
        limit = {} if self.max_seconds is None else {"max_seconds": self.max_seconds.text}
        today = {"today": _without_records(self.today).to_json()} if isinstance(self.today, AbstractPolicy) else {}
        return to_json_value(given) | limit | today

    @classmethod
    def from_json(cls, record: Mapping[str, Any], place: str) -> Spec:
        """Build a `Spec` from the object of `to_json`, whose other entries are ignored.

        ValueError names the damaged entry, below the `place` of the object.

        >>> Spec.from_json({"lam": -1}, "tuning")
        Traceback (most recent call last):
        ...
        ValueError: tuning.lam: must be between 0 and 1e+100, but it is -1
        """
        own = {"cascade": OWN_OBJECTIVE} if record.get("cascade") == OWN_OBJECTIVE else {}
        try:
            return cls(**read_fields(cls, {**record, **own}, place))
        except ValueError as problem:
            raise ValueError(str(problem) if str(problem).startswith(place) else f"{place}: {problem}") from None

    def check(self, held_out: bool = False) -> Spec:
        """Return the options; SpecError for the first option that does not go with the others.

        `held_out`: separate queries are given for the test of a guarantee.
        """
        confidence = self.confidence
        unlimited = "needs {max_error} or {match}: a budget is kept by following the bill"
        has_segments, has_margin = self.segment is not None, self.match is not None
        has_limit = self.max_seconds is not None
        rules = [
            ("copula", "needs {cascade}", bool(self.copula or self.method) and self.cascade is None),
            ("confidence", unlimited, confidence is not None and self.max_error is None and not has_margin),
            ("match", "goes with the default search: leave {cascade} out", has_margin and self.cascade is not None),
            ("match", "goes with one cascade for all queries: leave {segment} out", has_margin and has_segments),
            ("period", "needs {budget}", self.period is not None and self.budget is None),
            ("follows", "needs {budget}", not self.follows and self.budget is None),
            ("held_out", "needs {confidence}", held_out and confidence is None),
            ("judged", "needs {confidence}", self.judged and confidence is None),
            ("segment", "needs a target, such as {budget}", has_segments and self.target is None),
            ("segment", "goes with the default search: leave {cascade} out", has_segments and self.cascade is not None),
            ("segment", "has no guarantee: leave {confidence} out", has_segments and bool(confidence)),
            ("segment", "has no limit on the seconds: leave {max_seconds} out", has_segments and has_limit),
            ("max_seconds", "is not a guarantee: leave {confidence} out", has_limit and bool(confidence)),
        ]
        for option, problem, is_broken in rules:
            if is_broken:
                raise SpecError(option, problem)
        return self


class SpecFields(TypedDict, total=False):
    """The fields of `Spec`, as functions take them by keyword."""

    budget: float | None
    max_error: float | None
    match: float | None
    today: str | AbstractPolicy | None
    error_cost: float | None
    lam: float | None
    cascade: CascadeSet | None
    copula: str | None
    method: Literal["tau", "likelihood"] | None
    transform: Literal["auto", Transform]
    abstain_price: float | None
    confidence: float | None
    judged: bool
    intervals: bool
    follows: bool
    period: Period | None
    queries: Queries | None
    segment: str | None
    max_seconds: float | str | SecondsLimit | None


def with_spec(policy: AbstractPolicy, spec: Spec) -> AbstractPolicy:
    """Return the policy with the options of its tuning in the provenance of each rung; recorded entries stay."""
    return with_provenance(policy, tuning={**spec.to_json(), **policy.tuning})


_TUNING = "provenance.tuning"


def _check_prices(prices: Mapping[str, float], place: str) -> Mapping[str, float]:
    return require_keys(prices, place, [name for name in PRICES if name in (*PRICES[:2], *prices)])


#: Dollars per million tokens by model: prices of input and output, and optionally of cache reads and writes.
Prices = Mapping[str, Annotated[Mapping[str, Amount], _check_prices]]


@dataclass(frozen=True)
class _RequestSettings(Record):
    """The entries of a model's request settings that rcjax reads."""

    signal: str
    options: Object = field(default_factory=dict)
    prices: Annotated[Mapping[str, Amount], _check_prices] | None = None
    requests: Names | None = None


@dataclass(frozen=True)
class Tuning:
    """The record of how a policy was tuned."""

    spec: Spec
    """Recorded options; if they have no target, the target is the policy's λ."""
    models: tuple[str, ...]
    """Names of all models that the tuning could choose from."""
    prices: Mapping[str, Mapping[str, float]] | None
    """Prices of tokens, as `read_log` takes them; None if none were recorded."""

    def restrict_to(self, names: tuple[str, ...]) -> Tuning:
        """Return the record for a log with only the named models; entries with other models are left out."""
        models = tuple(name for name in self.models if name in names)
        cascade = self.spec.cascade
        if isinstance(cascade, tuple):
            cascade = tuple(path for path in cascade if set(path) <= set(models))
        today = self.spec.today
        if today is not None and not {*(today.models if isinstance(today, AbstractPolicy) else (today,))} <= {*names}:
            today = None
        spec = replace(self.spec, cascade=cascade, today=today)
        return replace(self, models=models, spec=spec)

    @property
    def can_search(self) -> bool:
        """Whether there are two models or more, and cascades of these models to choose from."""
        return len(self.models) > 1 and self.spec.cascade != ()


def recorded_tuning(policy: AbstractPolicy) -> Tuning:
    """Read how a policy was tuned; a policy without a record counts as tuned by the defaults, among its own models.

    >>> from rcjax.policy import Calibration, Policy, Rule
    >>> parts = {"small": Calibration("none", 0, 1, -9, 0)}, {"small": [Rule(1, "answer")]}, {"small": 1e-5}
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": 300}})).spec.target
    Target(name='lam', value=300.0)
    >>> recorded_tuning(Policy(("small",), *parts, provenance={"tuning": {"lam": "x"}}))
    Traceback (most recent call last):
    ...
    ValueError: provenance.tuning.lam: must be a number, but it is 'x'
    """
    record = policy.tuning
    models = read_value(Names, record["models"], f"{_TUNING}.models") if "models" in record else tuple(policy.models)
    spec = Spec.from_json(record, _TUNING)
    if isinstance(spec.cascade, tuple):
        read_cascades(spec.cascade, f"{_TUNING}.cascade", models)
    lam = policy.expected.get("lam") if spec.target is None else None
    known: dict[str, Any] = {} if lam is None else {"lam": lam}
    known |= next(({"transform": calibration.transform} for calibration in policy.calibrations.values()), {})
    known |= {"follows": policy.follows or policy.budget is None, "period": policy.period}
    return Tuning(replace(spec, **known), models, recorded_prices(policy) or policy.prices)


def recorded_prices(policy: AbstractPolicy) -> dict[str, Mapping[str, float]]:
    """Read the prices of all models that a policy was chosen from, by model, in dollars per million tokens."""
    return dict(read_value(Prices | None, policy.tuning.get("prices"), f"{_TUNING}.prices") or {})


def recorded_request_settings(policy: AbstractPolicy) -> dict[str, dict[str, Any]]:
    """Read the request settings of each model in the log that a policy was tuned on; empty if they were not recorded.

    The settings are `signal` with its entries, `options`, `prices`, and the forms of the `requests`. Raises ValueError
    for entries that rcjax does not write.
    """
    records = policy.provenance.get("request_settings", {})
    read_value(Mapping[str, _RequestSettings], records, "provenance.request_settings")
    return to_json_value(records)


def recorded_count(provenance: Mapping[str, Any], name: str, default: int) -> int:
    """Read a number of queries from a provenance; the default if the entry is missing."""
    return read_value(int, provenance[name], f"provenance.{name}") if name in provenance else default
