"""Frontiers read from their files."""

import dataclasses
import os
from typing import Any

from rcjax._base import json_checks as check
from rcjax._base.codec import Amount, read
from rcjax.frontier.bands import bands_from_json
from rcjax.frontier.frontier import FORMAT, Frontier, make_frontier
from rcjax.frontier.point_files import points_from_json
from rcjax.frontier.searches import Chain
from rcjax.frontier.waiting_times import seconds_from_json
from rcjax.model.cascade_model import fitted_from_json
from rcjax.policy.answers import Comparison
from rcjax.policy.spec import read_search


def load_frontier(path: str | os.PathLike[str]) -> Frontier:
    """Read a frontier that `Frontier.save` wrote.

    Raises ValueError (file, place, problem) where it is not valid, OSError where it cannot be read.
    """
    return check.load(path, frontier_from_json)


def frontier_from_json(data: Any) -> Frontier:
    """A frontier from the object of `Frontier.to_json`; unknown keys are ignored, problems a ValueError."""
    check.header(data, FORMAT)
    with check.inside("model"):
        model = fitted_from_json(data.get("model"))
    names = list(model.models)
    check.require(data.get("models") == names, "models", f"must be the model's, {names}", data.get("models"))
    frontier = make_frontier(
        model,
        points_from_json(model.models, data.get("frontier")),
        search=read_search(data.get("search"), "search", model.models),
        chain=read(Chain, data.get("chain"), "chain"),
        abstain_price=read(Amount | None, data.get("abstain_price"), "abstain_price"),
        compare=read(Comparison | None, data.get("compare"), "compare"),
    )
    frontier = dataclasses.replace(frontier, seconds=seconds_from_json(data["frontier"]))
    if "bands" not in data:
        return frontier
    return frontier.with_bands(bands_from_json(data["frontier"], data["bands"]))
