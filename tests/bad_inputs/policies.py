"""What is wrong with the file of a policy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs import BadFile, text_file

_NESTED = "[" * 100_000


def _with(tuning: Any) -> Callable[[Path], Path]:
    """A writer of the good policy with another record of its tuning, or other entries of it."""

    def write(folder: Path) -> Path:
        data = json.loads((folder / "policy.json").read_text("utf-8"))
        record = data["provenance"]
        record["tuning"] = record["tuning"] | tuning if isinstance(tuning, dict) else tuning
        path = folder / "tampered.json"
        path.write_text(json.dumps(data), "utf-8")
        return path

    return write


def _with_waiting(told: Any) -> Callable[[Path], Path]:
    """A writer of the good policy that tells this of what waiting is worth."""

    def write(folder: Path) -> Path:
        data = json.loads((folder / "policy.json").read_text("utf-8"))
        data["provenance"]["waiting"] = told
        path = folder / "waiting.json"
        path.write_text(json.dumps(data), "utf-8")
        return path

    return write


def _tampered(fault: str, tuning: Any, place: str) -> BadFile:
    return BadFile(fault, "policy", _with(tuning), ("tampered.json", place))


POLICIES = (
    BadFile("is nested deeply", "policy", text_file("deep.json", _NESTED), ("deep.json", "not JSON")),
    BadFile(
        "holds what is nested deeply",
        "policy",
        text_file("deeper.json", '{"format": "rcjax-policy", "models": ' + _NESTED),
        ("deeper.json", "not JSON"),
    ),
    BadFile("is a list", "policy", text_file("list.json", "[]"), ("list.json", "must hold a JSON object")),
    BadFile(
        "is of another format", "policy", text_file("other.json", '{"format": 5}'), ("other.json", "format", "is 5")
    ),
    _tampered("has a record that is a list", [1], "provenance.tuning: must be an object"),
    _tampered("was chosen from a number", {"models": [1]}, "provenance.tuning.models[0]"),
    _tampered(
        "has a limit that is none", {"max_seconds": "p90=4"}, "provenance.tuning.max_seconds: must be a number of"
    ),
    BadFile(
        "counts waiting at a price below 0",
        "policy",
        _with_waiting({"second_cost": -1, "money": {}}),
        ("waiting.json", "provenance.waiting.second_cost"),
    ),
    BadFile(
        "counts waiting in a list", "policy", _with_waiting([1]), ("waiting.json", "provenance.waiting: must be an")
    ),
)
