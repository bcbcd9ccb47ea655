"""The frontier: λ → the best cascade and its thresholds, and the policy for a target."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from rcjax._base.checks import SCHEMA_VERSION
from rcjax._base.codec import written
from rcjax._base.files import write_atomically
from rcjax._core.batching import part
from rcjax._core.json_values import plain
from rcjax.model.calibrated import Fitted
from rcjax.policy.counted import Counted, recorded_counted
from rcjax.policy.decisions import Comparison
from rcjax.policy.ladder import Ladder, position_at
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.policy.spec import Spec, Target
from rcjax.solving.frontier.hull import lower_hull, point_for, position_weights, thinned
from rcjax.solving.frontier.points import Bands, Points, Seconds
from rcjax.solving.frontier.policies import NEVER_REFUSE, Policies, Search, cascade_at

#: How far inside of its limit a ladder stands, so that no rounding lifts it above.
_INSIDE = 1e-13
#: The most rungs of a ladder, and how near to one a position is on it. With fewer rungs errors are a little higher:
#: where some lay below the line between their neighbours by up to a tenth of a standard error, by 0.7 % (TriviaQA).
MOST_RUNGS, _ON = 20, 1e-9

FORMAT = "rcjax-frontier"


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("lam", "error", "cost", "status", "policies"),
        *("model", "bands", "abstention", "seconds"),
    ),
    meta_fields=("spec", "compare"),
)
@dataclasses.dataclass(frozen=True)
class Frontier:
    """The policies that minimise error + λ·cost, one for each λ, in order of increasing λ; L lambdas, k models.

    What there is for each of the k models is in the order of `models`, those of the log that was fitted to.

    Error and cost are expected figures per query, cost in the log's money: as the model predicts them, or for
    `search="selected"` as the log lets them expect. Where models may refuse to answer (`abstain_price`), what is
    minimised is error + abstain_price·abstention + λ·cost, and an error is a wrong answer that was given.
    """

    lam: jax.Array
    """(L,) error probability per unit of money; 1/λ is what one error costs."""
    error: jax.Array
    """(L,) probability of a wrong answer."""
    cost: jax.Array
    """(L,) money per query."""
    status: jax.Array
    """(L,) a `PointStatus`."""
    policies: Policies
    """(L,) the policies as arrays."""
    model: Fitted
    """The fitted model, on the scale of whose confidences the thresholds are."""
    spec: Spec
    """The options of the search that found it: `Spec.cascade` and `Spec.abstain_price`."""
    bands: Bands | None = None
    """How sure we are of each point, where `bootstrap` has told."""
    abstention: jax.Array | None = None
    """(L,) share of the queries that get no answer; None: models may not refuse."""
    compare: Comparison | None = None
    """How the answers of its log were compared, for policies that compare answers."""
    seconds: Seconds | None = None
    """(L,) how long queries wait, where the log tells (`rcjax.tune` adds it); None where that is not known."""

    @property
    def search(self) -> Search | Literal["selected", "minimised"]:
        """The cascades of `solve_frontier`, or "selected" for `select_frontier`, "minimised" for `minimise`."""
        return self.spec.search

    @property
    def abstain_price(self) -> float | None:
        """The price of a refusal, in errors; None: models may not refuse."""
        return self.spec.abstain_price

    @property
    def thresholds(self) -> jax.Array | None:
        """(L, k) calibrated confidence above which each model answers; 0 always, 1 never; None when adaptive."""
        return None if self.search == "adaptive" else self.policies.bounds[..., -2]

    @property
    def members(self) -> jax.Array:
        """(L, k) bool, the models of the cascade."""
        return self.policies.members

    @property
    def refusals(self) -> jax.Array | None:
        """(L, k) calibrated confidence up to which each model refuses, at most its threshold; None when adaptive."""
        if self.abstain_price is None or self.search == "adaptive":
            return None
        bounds = self.policies.bounds  # where it was too dear to be used, none refuses
        return bounds[..., 0] if bounds.shape[-1] > 2 else 0 * bounds[..., 0] + NEVER_REFUSE

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the k models."""
        return self.model.models

    @property
    def counted(self) -> Counted:
        """What is counted as errors, with the words for it."""
        return recorded_counted(self.model.provenance)

    @property
    def penalty(self) -> jax.Array:
        """(L,) what the policies minimise besides money: the error, and each refusal as `abstain_price` errors."""
        if self.abstention is None or self.abstain_price is None:
            return self.error
        return self.error + self.abstain_price * self.abstention

    def policy(
        self,
        *,
        budget: float | None = None,
        max_error: float | None = None,
        error_cost: float | None = None,
        lam: float | None = None,
    ) -> AnyPolicy:
        """The policy to deploy for one target: a ladder that meets a limit exactly, or the point for a price.

        The rungs of a ladder are corners of the frontier's lower hull; between two of them it gives each query to one
        by a hash. For a budget a service moves along it, so that its bill keeps to the budget.

        Where models may refuse, a refusal counts as `abstain_price` errors in each of these, so that a policy cannot
        keep to `max_error` by refusing.

        Args:
            budget: least error at an expected cost per query of at most so much.
            max_error: least cost at an error probability of at most so much.
            error_cost: least cost plus errors, when one error costs so much (= 1/λ).
            lam: least error + λ·cost.

        Raises InfeasibleError where no point meets the target, and ValueError unless exactly one target is given, as a
        number that makes sense.
        """
        target = Target.of(budget=budget, max_error=max_error, error_cost=error_cost, lam=lam)
        if target.is_limit:
            return self.ladder(self._position(target), target)
        return self.point(self.choose(**target.to_json()), target.to_json())

    def shares(self, target: Target) -> np.ndarray:
        """(L,) the share of the queries that goes by each point, under the policy for a target.

        Raises InfeasibleError where no point meets it.
        """
        if not target.is_limit:
            return np.eye(len(self.lam))[self.choose(**target.to_json())]
        rungs, shares = self.rungs, np.zeros(len(self.lam))
        shares[rungs] = position_weights(np.array([self._position(target)]), len(rungs))[0]
        return shares

    def _position(self, target: Target) -> float:
        """Where on the ladder a limit is met; InfeasibleError where it is not."""
        self.choose(**target.to_json())
        cost, error = (np.asarray(figure, float)[self.rungs].tolist() for figure in (self.cost, self.penalty))
        return position_for(target, cost, error)

    @property
    def rungs(self) -> np.ndarray:
        """(R,) positions of the points that are the rungs of a ladder, by rising cost: corners of the lower hull."""
        error, cost = np.asarray(self.penalty, float), np.asarray(self.cost, float)
        hull = lower_hull(cost, error)
        return hull[thinned(cost[hull], error[hull], MOST_RUNGS)] if hull.size else hull

    def ladder(self, position: float, target: Target) -> AnyPolicy:
        """The ladder of the rungs at a position, chosen for a target; of a single rung, that policy.

        Args:
            position: from 0 to the number of rungs less 1.
            target: what it was chosen for; for a budget a service is to follow its bill.
        """
        points = tuple(self.point(int(index), target.to_json()) for index in self.rungs)
        budget = target.value if target.name == "budget" else None
        return points[0] if len(points) == 1 else Ladder(points, position, budget)

    def choose(self, **target: float) -> int:
        """The position of the point that meets one target, as of `policy`, whose errors these are too."""
        figures = np.asarray(self.cost, float), np.asarray(self.penalty, float)
        price = None if self.abstention is None else self.abstain_price
        return point_for(Target.of(**target), *figures, price, self.counted)

    def with_bands(self, bands: Bands) -> "Frontier":
        """The same frontier, with what `bootstrap` told of it."""
        return dataclasses.replace(self, bands=bands)

    def point(self, index: int, target: Mapping[str, float] | None = None) -> Policy:
        """The policy at one position of the frontier; its provenance records the `target` that it was chosen for."""
        cascade = cascade_at(self.models, self.policies.on_host(), index, self.compare or "text")
        asked = {name: self.models.index(name) for name in cascade["models"]}
        calibrators = jax.tree.map(np.asarray, self.model.calibrators)
        costs, prices = np.asarray(self.model.cost), self.model.prices or {}
        lam = float(np.asarray(self.lam)[index])
        price = {} if self.abstention is None else {"abstain_price": self.abstain_price}
        ends: dict[str, Any] = {}
        if self.bands is not None:
            for name in ("error", "cost"):
                low, high = np.asarray(getattr(self.bands, name), float)[index].tolist()
                ends |= {f"{name}_low": low, f"{name}_high": high}
            ends["level"] = self.bands.level
        return Policy(
            **cascade,
            calibrations={name: part(calibrators, j).deployed() for name, j in asked.items()},
            cost={name: float(costs[j]) for name, j in asked.items()},
            prices={name: prices[name] for name in asked if name in prices} or None,
            expected={
                **{name: float(np.asarray(column)[index]) for name, column in self._figures.items()},
                "error": float(
                    np.clip(np.asarray(self.error)[index], 0.0, 1.0)
                ),  # corrected by labels it may leave them
                "lam": lam,
                "error_cost": 1 / lam if lam > 0 else None,
                **price,
                **ends,
                **({} if self.seconds is None else self.seconds.to_json(index)),
            },
            provenance=describe_tuning(self, target),
        )

    @property
    def _figures(self) -> dict[str, jax.Array]:
        """(L,) what is expected, by name."""
        figures = {"error": self.error, "cost": self.cost, "abstention": self.abstention}
        return {name: column for name, column in figures.items() if column is not None}

    def to_json(self) -> dict[str, Any]:
        """JSON values: `frontier` is a list of points, `model` what they were solved from."""
        figures = {"lam": self.lam, "status": self.status, **self._figures}
        head: dict[str, Any] = {"search": plain(self.search)}
        if self.abstain_price is not None:
            head["abstain_price"] = self.abstain_price
        if self.bands is not None:
            ends = {name: getattr(self.bands, name) for name in ("error", "cost", "abstention")}
            figures |= {f"{name}_interval": interval for name, interval in ends.items() if interval is not None}
            head["bands"] = {"level": self.bands.level, "replicates": self.bands.replicates}
        columns = plain(figures) | ({} if self.seconds is None else self.seconds.to_json())
        rows, policies = zip(*columns.values(), strict=True), self.policies.on_host()
        cascades = (cascade_at(self.models, policies, row, self.compare or "text") for row in range(len(self.lam)))
        points = [
            dict(zip(columns, row, strict=True)) | written({name: part for name, part in cascade.items() if part})
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


def position_for(target: Target, cost: Sequence[float], error: Sequence[float]) -> float:
    """Where on a ladder a limit is met, as nearly as its first or last rung does: by the rungs' cost and error."""
    limit = target.value * (1 - _INSIDE)
    budget = target.name == "budget"
    position = position_at(cost, limit) if budget else len(error) - 1 - position_at(error[::-1], limit)
    return float(round(position)) if abs(position - round(position)) < _ON else position


def describe_tuning(frontier: Frontier, target: Mapping[str, float] | None) -> dict[str, Any]:
    """Where a policy of a `rcjax.Frontier` comes from, and all that it takes to check it and to tune it again.

    What its model says of the log (`describe_fit`); `tuning`: the fields of `Spec` that a frontier knows, the `models`
    to choose from and their `prices`; and `reference`: queries of that log.
    """
    model = frontier.model
    spec = dataclasses.replace(
        frontier.spec,
        transform=model.calibrators.transform,
        intervals=frontier.bands is not None,
        **(target or {}),
        **(model.details.fit or {}),
    )
    tuning = spec.to_json() | {"models": list(model.models), "prices": model.prices}
    provenance = {**model.provenance, "tuning": tuning}
    kept = model.details.reference
    return provenance if kept is None else provenance | {"reference": kept}


def make_frontier(model: Fitted, points: Points, spec: Spec, compare: Comparison | None = None) -> Frontier:
    """Return a frontier of points in numpy's arrays.

    Args:
        model: the fitted model.
        points: L points.
        spec: the options of tuning, of which the frontier keeps those of the search.
        compare: the comparison of answers, for policies that compare them.
    """
    simple = points.policies
    if simple.agreements is not None and not np.asarray(simple.agreements.compares).any():
        simple = dataclasses.replace(simple, agreements=None)
    # Not jnp.asarray, which compiles a programme for each shape.
    lam, status, expected, policies = jax.device_put((points.lam, points.status, points.expected, simple))
    return Frontier(
        *(lam, expected.wrong, expected.cost, status, policies, model),
        spec=Spec(cascade=spec.cascade, abstain_price=spec.abstain_price),
        abstention=None if spec.abstain_price is None else expected.refused,
        compare=None if simple.agreements is None else compare,
    )
