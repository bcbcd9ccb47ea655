"""The frontier that comes of a log, as a `Spec` says."""

from typing import Any

from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.policy.record import EXPECTED_IS_GONE
from rcjax.policy.spec import Spec
from rcjax.solving.solve import solve_frontier
from rcjax.tuning.bootstrap import bootstrap
from rcjax.tuning.seconds_limit import Admission, within
from rcjax.tuning.select import Selection, select_frontier

__all__ = ["find_frontier"]


def find_frontier(
    log: Log, model: CascadeModel, spec: Spec, admitted: Admission | None = None
) -> tuple[Frontier, Selection | None]:
    """The frontier of a model fitted to a log, with what its policies were compared with, where they were.

    Args:
        log: the log.
        model: the model fitted to it.
        spec: how to search.
        admitted: which policies may be chosen from; None: all may. By the labels it is searched among these, and of a
            search by the model alone the points stay that are among them.

    Raises InfeasibleError where none is admitted; ValueError for a search that is gone.
    """
    if spec.search == "expected":
        raise ValueError(f"{EXPECTED_IS_GONE}: leave it out")
    selection = None
    if admitted is not None:
        admitted.require_any(model)
    if spec.search == "selected":
        admits = None if admitted is None else admitted.admits
        how: dict[str, Any] = {"max_length": spec.max_length, "admits": admits, "target": spec.aim}
        selection = select_frontier(log, model=model, abstain_price=spec.abstain_price, **how)
        frontier = selection.frontier
    else:
        frontier = solve_frontier(model, cascades=spec.search, chain=spec.chain, abstain_price=spec.abstain_price)
    if admitted is not None and spec.search != "selected":
        frontier = within(frontier, admitted)
    if spec.intervals and frontier.bands is None:
        # Tuned again, policies would not keep to the limit: so they stay as they are, and only the queries vary.
        refit = None if admitted is None else False
        frontier = frontier.with_bands(bootstrap(frontier, log, refit=refit))
    return frontier, selection
