"""Which queries a report asks people to look at again: those that move what a policy promises most."""

import dataclasses
from typing import Any

import numpy as np

from rcjax._base.wording import Money
from rcjax.diagnostics.influences import Influence, influence
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.policy import Policy

__all__ = ["InfluentialQueries", "InfluentialQuery", "find_influential", "influential_context"]

_COUNT = 10


@dataclasses.dataclass(frozen=True)
class InfluentialQuery:
    """A query of the log, what the models of a cascade said to it, and what would change if it were not there."""

    query: str
    confidence: dict[str, float | None]
    """By model, calibrated; None where it did not answer."""
    correct: dict[str, bool | float | None]
    """By model, or its score; None where that is not known."""
    error: float
    """The change of the predicted error."""
    cost: float
    """The change of the predicted money per query."""


@dataclasses.dataclass(frozen=True)
class InfluentialQueries:
    """The queries that move the predicted error of a policy most."""

    models: tuple[str, ...]
    """Of the policy, in the order asked."""
    rows: tuple[InfluentialQuery, ...]
    """The first moves most; none where what a query moves is not known."""
    note: str
    """Why there are none; else empty."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


def find_influential(policy: Policy, model: CascadeModel, log: Log) -> InfluentialQueries:
    """The ten queries of a log that move the error that a policy promises most, by `rcjax.diagnostics.influence`.

    Args:
        policy: of the frontier tuned on the log.
        model: fitted to the log, which calibrates the confidences shown.
        log: what was tuned on.
    """
    note = _why_not(policy)
    if note:
        return InfluentialQueries(policy.models, (), note)
    try:
        moved = influence(policy, log)
    except LogError as problem:
        return InfluentialQueries(policy.models, (), str(problem))
    rows = moved.top(_COUNT, by="error")
    return InfluentialQueries(policy.models, tuple(_row(log, model, moved, number) for number in rows), "")


def _row(log: Log, model: CascadeModel, moved: Influence, number: int) -> InfluentialQuery:
    confidence = np.asarray(model.calibrate(np.asarray(log.logprob)[number]), float)
    there, labelled, correct = (np.asarray(m)[number] for m in (log.answered, log.labelled, log.correct))
    columns = {name: log.models.index(name) for name in moved.models}
    return InfluentialQuery(
        query=moved.queries[number],
        confidence={name: float(confidence[j]) if there[j] else None for name, j in columns.items()},
        correct={name: correct[j].item() if there[j] and labelled[j] else None for name, j in columns.items()},
        error=float(moved.error[number]),
        cost=float(moved.cost[number]),
    )


def _why_not(policy: Policy) -> str:
    """Why no query's influence on a policy is known; empty where it is."""
    if len(policy.models) < 2:
        return "this policy asks one model, and has no thresholds that a query could move"
    if policy.agreements:
        return "this policy goes by whether answers agree, which the model of confidences does not describe"
    if policy.expected.get("lam") is None:
        return "at which price of an error this policy is best is not known"
    return ""


def influential_context(influential: InfluentialQueries, money: Money) -> dict[str, Any]:
    """What the template needs: strings, and lists of them."""
    return {
        "models": list(influential.models),
        "note": influential.note,
        "rows": [
            {
                "query": row.query,
                "said": [_said(row.confidence[name], row.correct[name]) for name in influential.models],
                "error": _signed(f"{abs(100 * row.error):#.2g}".rstrip("."), row.error),
                "cost": _signed(f"${money.show(abs(row.cost))}", row.cost),
            }
            for row in influential.rows
        ],
    }


def _signed(figure: str, value: float) -> str:
    return f"{'+' if value > 0 else '−'}{figure}" if value else figure


def _said(confidence: float | None, correct: bool | float | None) -> str:
    if confidence is None:
        return "no answer"
    if isinstance(correct, float):
        return f"{confidence:.2f}, score {correct:.2f}"
    return f"{confidence:.2f}, {'no label' if correct is None else 'right' if correct else 'wrong'}"
