"""What is wrong with the file of a frontier."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs import BadFile, text_file

_NESTED = "[" * 100_000


def _with(path: tuple, value: Any) -> Callable[[Path], Path]:
    """A writer of the good frontier with another value at a place."""

    def write(folder: Path) -> Path:
        data = json.loads((folder / "frontier.json").read_text("utf-8"))
        *parents, last = path
        spot = data
        for key in parents:
            spot = spot[key]
        spot[last] = value
        file = folder / "tampered.json"
        file.write_text(json.dumps(data), "utf-8")
        return file

    return write


def _tampered(fault: str, path: tuple, value: Any, place: str) -> BadFile:
    return BadFile(fault, "frontier", _with(path, value), ("tampered.json", place))


FRONTIERS = (
    BadFile(
        "is nested deeply",
        "frontier",
        text_file("deep.json", '{"format": "rcjax-frontier", "model": ' + _NESTED),
        ("deep.json", "not JSON"),
    ),
    _tampered("costs NaN", ("frontier", 0, "cost"), float("nan"), "frontier[0].cost: must be between"),
    _tampered("errs on 7", ("frontier", 1, "error"), 7, "frontier[1].error: must be between"),
    _tampered("has a number for thresholds", ("frontier", 0, "thresholds"), 5, "frontier[0].thresholds: must be"),
    _tampered("has an unknown status", ("frontier", 0, "status"), 9, "frontier[0].status: must be between"),
    _tampered("has an unknown model", ("frontier", 0, "models"), ["other"], "frontier[0].models: must name some of"),
    _tampered("has no members", ("frontier", 0, "models"), [], "frontier[0].models: must be a list, not empty"),
    _tampered("has no points", ("frontier",), [], "frontier: must be a list, not empty"),
    _tampered("has a model without costs", ("model", "cost"), [], "model.cost: must be a list of 3"),
    _tampered("has a model without details", ("model", "details"), None, "model.details: must be an object"),
    _tampered("has no model", ("model",), None, "model.file: must hold a JSON object"),
    _tampered("is of another version", ("schema_version",), 99, "this file has version 99; rcjax reads 1"),
)
