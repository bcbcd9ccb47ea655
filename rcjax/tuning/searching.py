"""How a log is tuned, and the frontier that comes of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from rcjax.frontier.frontier import Frontier
from rcjax.frontier.searches import Chain
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.limits import SecondsLimit
from rcjax.policy.policy import Transform
from rcjax.policy.record import EXPECTED_IS_GONE
from rcjax.policy.targets import TargetName
from rcjax.solving.solve import solve_frontier
from rcjax.tuning.bootstrap import bootstrap
from rcjax.tuning.seconds_limit import Admission, within
from rcjax.tuning.select import Selection, select_frontier

__all__ = ["Settings", "find_frontier"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a log is tuned, whichever log and target."""

    search: Any = "selected"
    """As `Frontier.search`: by the labels ("selected"), or by the model."""
    max_length: int | None = None
    """The most models in a cascade of a search by the labels; None: all."""
    chain: Chain = "exact"
    fit: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"copula": "gumbel"})
    """Options of `fit`."""
    transform: Transform | Literal["auto"] = "auto"
    abstain_price: float | None = None
    """What a refusal costs, in errors; None: models may not refuse."""
    abstain_early: bool = True
    """Whether any model may refuse, or the last one of a cascade only."""
    confidence: float | None = None
    """That of the guarantee; None for none."""
    judged: bool = False
    """Whether judges' verdicts count for the guarantee, corrected by the labels by hand."""
    label_prices: tuple[float, float] | None = None
    """What a label by hand and a judged query cost, for advice on which to buy; None: no advice."""
    mix: bool = False
    """Whether to meet the target exactly, by a mixture where need be."""
    intervals: bool = True
    second_cost: float = 0.0
    """What a second of waiting is worth, in money; costs count it."""
    aim: TargetName = "budget"
    """The kind of target that policies will be chosen for, where no target is given."""
    max_seconds: SecondsLimit | None = None
    """How long queries may wait; None: as long as it takes."""


def find_frontier(
    log: Log,
    model: CascadeModel,
    settings: Settings,
    admitted: Admission | None = None,
    target: TargetName = "budget",
) -> tuple[Frontier, Selection | None]:
    """The frontier of a model fitted to a log, with what its policies were compared with, where they were.

    Args:
        log: the log.
        model: the model fitted to it.
        settings: how to search.
        admitted: which policies may be chosen from; None: all may. By the labels it is searched among these, and of a
            search by the model alone the points stay that are among them.
        target: the kind of target that a policy is chosen for: as `select_frontier` takes it.

    Raises InfeasibleError where none is admitted; ValueError for a search that is gone.
    """
    if settings.search == "expected":
        raise ValueError(f"{EXPECTED_IS_GONE}: leave it out")
    selection = None
    refusing: dict[str, Any] = {"abstain_price": settings.abstain_price, "abstain_early": settings.abstain_early}
    if admitted is not None:
        admitted.require_any(model)
    if settings.search == "selected":
        admits = None if admitted is None else admitted.admits
        how: dict[str, Any] = {"max_length": settings.max_length, "admits": admits, "target": target}
        selection = select_frontier(log, model=model, **how, **refusing)
        frontier = selection.frontier
    else:
        frontier = solve_frontier(model, cascades=settings.search, chain=settings.chain, **refusing)
    if admitted is not None and settings.search != "selected":
        frontier = within(frontier, admitted)
    if settings.intervals and frontier.bands is None:
        # Tuned again, policies would not keep to the limit: so they stay as they are, and only the queries vary.
        refit = None if admitted is None else False
        frontier = frontier.with_bands(bootstrap(frontier, log, refit=refit))
    return frontier, selection
