"""The frontier: λ → the best cascade and its thresholds, the policy for a target, and its file."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Literal

import jax
import numpy as np
from jax.typing import ArrayLike

from rcjax._base.codec import (
    SCHEMA_VERSION,
    Amount,
    Between,
    Names,
    Positive,
    Record,
    check_fields,
    check_header,
    load_json,
    not_empty,
    prefix_place,
    read_value,
    require,
    require_subset,
    to_json_value,
)
from rcjax._base.figures import Money, choose_unit, distinct_percentages
from rcjax._base.files import write_atomically
from rcjax._core.batching import Array, as_json_values, take_entries
from rcjax.model.calibrated_models import FittedModel
from rcjax.policy.decisions import Agreement, AnswerForm, Table, require_agreements, require_rules
from rcjax.policy.error_kind import ERRORS, ErrorKind, penalised, recorded_error_kind
from rcjax.policy.ladder import Ladder, Period, position_at
from rcjax.policy.policy import AbstractPolicy, Policy
from rcjax.policy.spec import CascadeSet, Spec, Target
from rcjax.solving.frontier.points import (
    ABSTAIN,
    NEVER_ABSTAIN,
    NEVER_ANSWER,
    Bands,
    LossTerms,
    Points,
    PointStatus,
    Policies,
    Seconds,
    lower_hull,
    policies_from_rules,
    rules_of_policy,
    thin_hull,
)

#: Relative distance of a ladder from its limit, so that rounding does not lift the ladder above.
_LIMIT_MARGIN = 1e-13
#: Most rungs of a ladder. Dropping rungs within 0.1 standard errors of the hull raised errors by 0.7 % (TriviaQA).
MAX_RUNGS = 20

_RUNG_DISTANCE = 1e-9  # distance within which a position is on a rung
FORMAT = "rcjax-frontier"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Frontier:
    """L policies over k models, one for each λ, in order of increasing λ.

    Each minimises error + λ·cost, except points of status INTERPOLATED: their thresholds lie between those of two
    neighbouring optima.

    Arrays over the k models are in the order of `models`, the models of the fitted log.

    Error and cost are expected figures per query, cost in the log's money. The model predicts both; for
    `search="labels"` both are estimates from labels and bills. Where models may abstain (`abstain_price`),
    policies minimise error + abstain_price·abstention + λ·cost, and an abstention is not an error.
    """

    lam: jax.Array
    """(L,) error probability per unit of money; 1/λ is the cost of one error."""
    error: jax.Array
    """(L,) probability of a wrong answer."""
    cost: jax.Array
    """(L,) money per query."""
    status: jax.Array
    """(L,) `PointStatus` of each point."""
    policies: Policies
    """(L,) policies as arrays."""
    model: FittedModel
    """Fitted model, whose calibrated confidences the thresholds apply to."""
    spec: Spec = dataclasses.field(metadata={"static": True})
    """Options of the search: `Spec.cascade` and `Spec.abstain_price`."""
    bands: Bands | None = None
    """Intervals around each point; None before `bootstrap`."""
    abstention: jax.Array | None = None
    """(L,) share of the queries that get no answer; None: models may not abstain."""
    compare: AnswerForm | None = dataclasses.field(default=None, metadata={"static": True})
    """Form of comparison of the answers of the log; None: no policy compares answers."""
    seconds: Seconds | None = None
    """(L,) seconds until queries are answered, added by `rcjax.tune`; None: the log has no seconds."""

    @property
    def search(self) -> CascadeSet | Literal["labels", "objective"]:
        """The cascades of `solve_frontier`, or "labels" for `select_frontier`, "objective" for `minimise`."""
        return "labels" if self.spec.cascade is None else self.spec.cascade

    @property
    def is_by_labels(self) -> bool:
        """True for a search by labels (`select_frontier`), whose costs are bills and not predictions of the model."""
        return self.spec.is_by_labels

    @property
    def abstain_price(self) -> float | None:
        """Price of an abstention, in errors; None: models may not abstain."""
        return self.spec.abstain_price

    @property
    def thresholds(self) -> Array | None:
        """(L, k) calibrated confidence above which each model answers; 0 always, 1 never; None when adaptive."""
        return None if self.search == "adaptive" else self.policies.thresholds

    @property
    def members(self) -> Array:
        """(L, k) bool: the models of each cascade."""
        return self.policies.members

    @property
    def abstain_thresholds(self) -> Array | None:
        """(L, k) calibrated confidence up to which each model abstains, at most its threshold; None when adaptive."""
        if self.abstain_price is None or self.search == "adaptive":
            return None
        bounds = self.policies.bounds  # without a bound for abstentions, their price was too high for any
        return bounds[..., 0] if bounds.shape[-1] > 2 else 0 * bounds[..., 0] + NEVER_ABSTAIN

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the k models."""
        return self.model.models

    @property
    def error_kind(self) -> ErrorKind:
        """Kind of error, with its words."""
        return recorded_error_kind(self.model.provenance)

    @property
    def penalty(self) -> Array:
        """(L,) error, with each abstention as `abstain_price` errors: the loss without money."""
        return self.error if self.abstention is None else penalised(self.error, self.abstention, self.abstain_price)

    def policy(
        self,
        *,
        budget: float | None = None,
        max_error: float | None = None,
        error_cost: float | None = None,
        lam: float | None = None,
    ) -> AbstractPolicy:
        """Return the policy to deploy for one target: a ladder that meets a limit exactly, or the point for a λ.

        The rungs of a ladder are corners of the frontier's lower hull. Between two rungs a hash of the query decides
        which rung answers it. For a budget, a service moves along the ladder so that its bill keeps to the budget.

        Where models may abstain, every target counts an abstention as `abstain_price` errors, so that a policy cannot
        keep to `max_error` by abstaining.

        Args:
            budget: expected cost per query, at most; the policy has the least error within it.
            max_error: error probability, at most; the policy has the least cost within it.
            error_cost: cost of one error (= 1/λ); the policy has the least sum of cost and errors.
            lam: error probability per unit of money; the policy has the least error + λ·cost.

        Raises InfeasibleError if no point meets the target; ValueError unless exactly one valid target is given.
        """
        target = Target.of(budget=budget, max_error=max_error, error_cost=error_cost, lam=lam)
        return self.policy_for(target)

    def policy_for(self, target: Target) -> AbstractPolicy:
        """Return the policy for a target, as `policy` does. Raises ValueError for a margin."""
        best = self.index_for(target)
        if not target.is_limit:
            return self.policy_at(best, target)
        rungs = self.rung_indices
        cost, error = (np.asarray(figure, float)[rungs].tolist() for figure in (self.cost, self.penalty))
        return self.ladder(position_within(target, cost, error), target)

    def index_for(self, target: Target) -> int:
        """Return the index of the point that meets a target; targets and errors are those of `policy`."""
        figures = np.asarray(self.cost, float), np.asarray(self.penalty, float)
        abstain_price = None if self.abstention is None else self.abstain_price
        return best_point(target, *figures, abstain_price, self.error_kind)

    @property
    def rung_indices(self) -> np.ndarray:
        """(R,) indices of the rungs of a ladder among the points, by rising cost: corners of the lower hull."""
        error, cost = np.asarray(self.penalty, float), np.asarray(self.cost, float)
        hull = lower_hull(cost, error)
        return hull[thin_hull(cost[hull], error[hull], MAX_RUNGS)] if hull.size else hull

    def ladder(self, position: float, target: Target) -> AbstractPolicy:
        """Return the ladder at a position, chosen for a target; with a single rung, the policy of that rung.

        If the target is a budget, a service follows its bill.
        """
        return make_ladder([self.policy_at(int(index), target) for index in self.rung_indices], position, target)

    def take(self, indices: ArrayLike) -> "Frontier":
        """Take points by their indices (m,), in this order, without intervals.

        >>> import rcjax
        >>> rcjax.solve_frontier(rcjax.demo_model(), lam=[1.0, 10.0]).take([1, 1]).lam.tolist()
        [10.0, 10.0]
        """
        names = ("lam", "error", "cost", "status", "abstention", "policies")
        figures = jax.tree.map(np.asarray, {name: getattr(self, name) for name in names})
        taken = jax.device_put(take_entries(figures, np.asarray(indices)))
        return dataclasses.replace(self, **taken, bands=None, seconds=None)

    def policy_at(self, index: int, target: Target | None = None) -> Policy:
        """Return the policy at one index of the frontier; its provenance records its `target`."""
        cascade = rules_of_policy(self.models, self.policies.on_host(), index, self.compare or "text")
        columns = {name: self.models.index(name) for name in cascade["models"]}
        calibrators = jax.tree.map(np.asarray, self.model.calibrators)
        costs, prices = np.asarray(self.model.cost), self.model.prices or {}
        lam = float(np.asarray(self.lam)[index])
        abstain_price = {} if self.abstention is None else {"abstain_price": self.abstain_price}
        figures = ((name, np.asarray(column)[index]) for name, column in self._figures.items())
        ends: dict[str, Any] = {}
        if self.bands is not None:
            for name in ("error", "cost"):
                low, high = np.asarray(getattr(self.bands, name), float)[index].tolist()
                ends |= {f"{name}_low": low, f"{name}_high": high}
            ends["level"] = self.bands.level
        return Policy(
            **cascade,
            calibrations={name: take_entries(calibrators, j).to_calibration() for name, j in columns.items()},
            cost={name: float(costs[j]) for name, j in columns.items()},
            prices={name: prices[name] for name in columns if name in prices} or None,
            expected={
                # Quadrature may put a share outside [0, 1] by 1e-4.
                **{name: float(np.clip(column, 0.0, None if name == "cost" else 1.0)) for name, column in figures},
                "lam": lam,
                "error_cost": 1 / lam if lam > 0 else None,
                **abstain_price,
                **ends,
                **({} if self.seconds is None else self.seconds.to_json(index)),
            },
            provenance=tuning_provenance(self, target),
        )

    @property
    def _figures(self) -> dict[str, jax.Array]:
        """(L,) expected figures by name."""
        figures = {"error": self.error, "cost": self.cost, "abstention": self.abstention}
        return {name: column for name, column in figures.items() if column is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the frontier as JSON values: `frontier` is the list of points, `model` the fitted model."""
        figures = {"lam": self.lam, "status": self.status, **self._figures}
        head = self.spec.to_json()
        if self.bands is not None:
            ends = {name: getattr(self.bands, name) for name in ("error", "cost", "abstention")}
            figures |= {f"{name}_interval": interval for name, interval in ends.items() if interval is not None}
            head["bands"] = {"level": self.bands.level, "replicates": self.bands.replicates}
        columns = as_json_values(figures) | ({} if self.seconds is None else self.seconds.to_json())
        rows = zip(*columns.values(), strict=True)
        policies = self.policies.on_host()
        cascades = (rules_of_policy(self.models, policies, row, self.compare or "text") for row in range(len(self.lam)))
        points = [
            dict(zip(columns, row, strict=True)) | to_json_value({name: part for name, part in cascade.items() if part})
            for row, cascade in zip(rows, cascades, strict=True)
        ]
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "models": list(self.models),
            **head,
            "frontier": points,
            "model": self.model.to_json(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frontier as JSON; never leaves a half-written file."""
        write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")


class InfeasibleError(ValueError):
    """Raised if no point of the frontier meets the target; the message names the best figure that is reached."""

    #: The `Tuned` of `rcjax.tune`, without a policy; None if nothing was tuned.
    tuned: Any = None


def best_point(
    target: Target, cost: np.ndarray, penalty: np.ndarray, abstain_price: float | None, error_kind: ErrorKind = ERRORS
) -> int:
    """Return the index of the point that meets a target.

    Args:
        target: a budget, for the least error within it; a limit on the error, for the least cost within it; or a
            price, for the least error + λ·cost.
        cost: (L,) money per query.
        penalty: (L,) errors, and abstentions at their price.
        abstain_price: price of an abstention, in errors; None: models do not abstain.
        error_kind: kind of error, for the message.

    Raises InfeasibleError if no point meets the target; ValueError for a margin.

    >>> cost, error = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1])
    >>> best_point(Target("budget", 2.5), cost, error, None)
    1
    """
    if target.name == "match":
        raise ValueError("match is a margin beside today's error, which is not on a frontier: use tune(log, match=...)")
    value, limit = target.value, target.value * (1 + 1e-9)
    if target.name == "budget":
        if not (cost <= limit).any():
            raise InfeasibleError(over_budget_message(value, float(cost.min())))
        return int(np.lexsort((cost, np.where(cost <= limit, penalty, np.inf)))[0])
    if target.name == "max_error":
        if not (penalty <= limit).any():
            abstaining = "" if abstain_price is None else f", an abstention counted as {100 * abstain_price:.4g} %"
            least, most = distinct_percentages(float(penalty.min()), value)
            advice = f"give --max-error {_round_up(100 * float(penalty.min()))}% or more"
            best = f"the best {error_kind.predicate(least)}{abstaining}"
            raise InfeasibleError(f"no cascade {error_kind.predicate(most)} or less; {best}: {advice}")
        return int(np.lexsort((penalty, np.where(penalty <= limit, cost, np.inf)))[0])
    return int(np.argmin(penalty + target.lam * cost))


def over_budget_message(budget: float, cheapest: float, period: Period | None = None) -> str:
    """Return the message that no cascade keeps to a budget per query, which may have been given for a period.

    >>> print(over_budget_message(1e-6, 1.82154e-5))
    no cascade costs $1.00 per million queries or less; the cheapest costs $18.22: give --budget 18.3/M or more
    >>> print(over_budget_message(1e-6, 1.82154e-5, Period(2.0, "month")))
    no cascade costs $2.00 a month or less; the cheapest costs $36.44: give --budget 36.5/month or more
    """
    money, amount, unit = choose_unit([cheapest]), 1e6 * cheapest, "M"
    if period is not None and budget > 0:
        money, unit = Money(period.money / budget, period.every), period.every
        amount = cheapest * money.scale
    shown = cheapest * money.scale
    least = _round_up(shown, max(4, len(f"{shown:.0f}")))  # a budget that will do, by a dollar or four digits
    message = f"no cascade costs {money.full(budget)} or less; the cheapest costs ${Decimal(least):,f}"
    return f"{message}: give --budget {_round_up(amount)}/{unit} or more"


def _round_up(amount: float, digits: int = 3) -> str:
    """Return an amount, rounded up to some digits, as options take it."""
    if amount <= 0:
        return "0"
    step = Decimal(10) ** (Decimal(amount).adjusted() + 1 - digits)
    rounded = (Decimal(amount * (1 - 1e-12)) / step).to_integral_value(ROUND_CEILING) * step
    return f"{rounded.normalize():f}"


def position_within(target: Target, cost: Sequence[float], error: Sequence[float]) -> float:
    """Return the position on a ladder that meets a limit, or its nearest end, by the rungs' cost and error."""
    limit = target.value * (1 - _LIMIT_MARGIN)
    budget = target.name == "budget"
    position = position_at(cost, limit) if budget else len(error) - 1 - position_at(error[::-1], limit)
    return float(round(position)) if abs(position - round(position)) < _RUNG_DISTANCE else position


def make_ladder(rungs: Sequence[Policy], position: float, target: Target) -> AbstractPolicy:
    """Return the ladder of some rungs at a position, chosen for a target; the policy of a single rung.

    For a budget of 0 it is the policy of the first rung, which asks free models: there is no bill to follow.
    """
    budget = target.value if target.name == "budget" else None
    return rungs[0] if len(rungs) == 1 or budget == 0 else Ladder(tuple(rungs), position, budget)


def tuning_provenance(frontier: Frontier, target: Target | None) -> dict[str, Any]:
    """Return the provenance of a policy of a frontier: the data needed to check the policy and to tune it again.

    It holds the provenance of the model (`fit_provenance`); `tuning`: the fields of `Spec` that the frontier knows,
    with the `models` of the search and their `prices`; and `kept_sample`: queries of the log.
    """
    model = frontier.model
    spec = dataclasses.replace(
        frontier.spec,
        transform=model.calibrators.transform,
        intervals=frontier.bands is not None,
        **({} if target is None else target.to_json()),
        **(model.record.fit or {}),
    )
    tuning = spec.to_json() | {"models": list(model.models), "prices": model.prices}
    provenance = {**model.provenance, "tuning": tuning}
    kept = model.record.kept_sample
    return provenance if kept is None else provenance | {"kept_sample": kept}


def make_frontier(model: FittedModel, points: Points, spec: Spec, compare: AnswerForm | None = None) -> Frontier:
    """Build a frontier from its points.

    Args:
        model: the fitted model.
        points: L points, in numpy arrays.
        spec: options of the tuning; the frontier keeps the options of the search.
        compare: form of comparison, for policies that compare answers.
    """
    simple = points.policies
    if simple.agreements is not None and not np.asarray(simple.agreements.compares).any():
        simple = dataclasses.replace(simple, agreements=None)
    # `jnp.asarray` would compile a program for each shape.
    lam, status, expected, policies = jax.device_put((points.lam, points.status, points.expected, simple))
    return Frontier(
        *(lam, expected.wrong, expected.cost, status, policies, model),
        spec=Spec(cascade=spec.cascade, abstain_price=spec.abstain_price),
        abstention=None if spec.abstain_price is None else expected.abstained,
        compare=None if simple.agreements is None else compare,
    )


_INTERVALS = ("error_interval", "cost_interval", "abstention_interval")
_QUADRATURE_MARGIN = 1e-4  # distance by which quadrature may put a share of the queries outside [0, 1]

_Expected = Annotated[float, Between(-_QUADRATURE_MARGIN, 1 + _QUADRATURE_MARGIN)]


def _check_order(ends: tuple[float, float], place: str) -> tuple[float, float]:
    require(ends[0] <= ends[1], place, "must have its lower end first", ends)
    return ends


_Interval = Annotated[tuple[float, float], _check_order]


@dataclasses.dataclass(frozen=True)
class PointFile(Record):
    """A point of a frontier: its figures, and its policy as in the file of a policy."""

    lam: Annotated[Amount, lambda value, place: value if value == 0 else read_value(Positive, value, place)]
    cost: Amount
    error: _Expected
    status: Annotated[int, Between(0, max(PointStatus))]
    models: Names
    rules: Mapping[str, Table]
    abstention: _Expected | None = None
    agreements: Mapping[str, Agreement] = dataclasses.field(default_factory=dict)
    error_interval: _Interval | None = None
    cost_interval: _Interval | None = None
    abstention_interval: _Interval | None = None
    seconds: Amount | None = None
    seconds_p95: Amount | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require_agreements(self.agreements, "agreements", self.models)
        require_rules(self.rules, "rules", self.models)


@dataclasses.dataclass(frozen=True)
class BandsFile(Record):
    """The level and the number of replicates of the intervals."""

    level: Annotated[float, Between(1e-9, 1 - 1e-9)]
    replicates: Annotated[int, Between(1, 10**15)]


@dataclasses.dataclass(frozen=True)
class FrontierFile(Record):
    """The file of a frontier, without its model."""

    models: Names
    frontier: Annotated[tuple[PointFile, ...], not_empty]
    bands: BandsFile | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        first = self.frontier[0]
        first_values = {name: getattr(first, name) for name in ("abstention", "abstention_interval")}
        first_values |= {"error_interval": self.bands, "cost_interval": self.bands}
        for row, point in enumerate(self.frontier):
            require_subset(point.models, f"frontier[{row}].models", self.models)
            for name, other in first_values.items():
                requirement = "must be there in all points or in none, and intervals where there are bands"
                value = getattr(point, name)
                require((value is None) == (other is None), f"frontier[{row}].{name}", requirement, value)


def load_frontier(path: str | os.PathLike[str]) -> Frontier:
    """Read a frontier that `Frontier.save` wrote.

    Raises ValueError (file, place, problem) if the file is not valid; OSError if it cannot be read.
    """
    return load_json(path, frontier_from_json)


def frontier_from_json(data: Any) -> Frontier:
    """Build a frontier from the object of `Frontier.to_json`, ignoring unknown keys; ValueError if it is invalid."""
    check_header(data, FORMAT)
    file: FrontierFile = read_value(FrontierFile, data, "")
    with prefix_place("model"):
        from rcjax.model.cascade_model import fitted_from_json  # a frontier by labels needs no copulas

        model = fitted_from_json(data.get("model"))
    require(file.models == model.models, "models", f"must be the model's, {list(model.models)}", file.models)
    points, spec = file.frontier, Spec.from_json(data, "")
    policies = policies_from_rules([model.models] * len(file.frontier), file.frontier)
    if spec.cascade != "adaptive":
        policies = _as_cascades(policies)
        for row, point in enumerate(points):
            is_same = rules_of_policy(model.models, policies, row, "text")["rules"] == point.rules
            requirement = "must abstain, ask the next model, then answer, where the search is not adaptive"
            require(is_same, f"frontier[{row}].rules", requirement, dict(point.rules))
    lam, status, *expected = _stack_figures(points, "lam", "status", "error", "cost", "abstention")
    frontier = make_frontier(
        model,
        Points(lam, status.astype(int), LossTerms(*map(np.nan_to_num, expected)), policies),
        spec,
        next((agreement.compare for point in points for agreement in point.agreements.values()), None),
    )
    seconds = Seconds(*_stack_figures(points, "seconds", "seconds_p95"))
    bands = None
    if file.bands is not None:
        error, cost, abstention = jax.device_put(_stack_figures(points, *_INTERVALS))
        abstention = None if points[0].abstention_interval is None else abstention
        bands = Bands(error, cost, **vars(file.bands), abstention=abstention)
    known = not np.isnan(seconds.mean).all()
    return dataclasses.replace(frontier, seconds=seconds if known else None, bands=bands)


def _stack_figures(points: Sequence[PointFile], *names: str) -> list[np.ndarray]:
    """Collect figures of the points as arrays (L, …); NaN for None."""
    return [np.array([getattr(point, name) for point in points], float) for name in names]


def _as_cascades(policies: Policies) -> Policies:
    """Convert policies whose models abstain, then ask the next model, then answer, to cascades."""
    itself = np.arange(policies.members.shape[-1])[:, None]
    used = (np.diff(policies.bounds, axis=-1, prepend=0.0) > 0) & policies.members[..., None]
    thresholds, abstain_thresholds = (
        np.where(used & chosen, policies.bounds, 0.0).max(-1)
        for chosen in (policies.actions != itself, policies.actions == ABSTAIN)
    )
    thresholds = np.where(policies.members, thresholds, NEVER_ANSWER)
    abstain_thresholds = abstain_thresholds if abstain_thresholds.any() else None
    return Policies.from_cascades(thresholds, policies.members, abstain_thresholds, agreements=policies.agreements)
