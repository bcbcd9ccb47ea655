"""Files that older versions of rcjax wrote: they load, and are written back as they were but for what is new since.

Those in `files_of_before` were tuned on 60 queries of `rcjax.sample_log` with three of its models.
"""

import json
from pathlib import Path

import pytest
from misses import in_turn

import rcjax
from rcjax.tuning.retune import recorded_tuning

pytestmark = pytest.mark.usefixtures("float64")
FILES = sorted((Path(__file__).parent / "files_of_before").glob("*.json"))
LOADERS = {
    "rcjax-frontier": rcjax.load_frontier,
    "rcjax-mixture": rcjax.load_policy,
    "rcjax-model": rcjax.model.load_model,
    "rcjax-policy": rcjax.load_policy,
}


def differences(old, new, place=""):
    """The places of what was in the old JSON value and is not the same in the new one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from differences(value, new.get(key, "absent"), f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{place}[{index}]")
    elif old != new:
        yield place


def ordered(data):
    """The JSON value of a frontier, with the cascades that equally many replicates choose in one order."""
    for point in data.get("frontier", ()):
        if "chosen_by_replicates" in point:
            point["chosen_by_replicates"].sort(key=lambda row: (-row["share"], row["models"]))
    return data


def test_there_is_a_file_of_each_kind():
    assert {json.loads(path.read_text("utf-8"))["format"] for path in FILES} == {*LOADERS}


@in_turn("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_before_loads_and_is_written_back(path, tmp_path):
    old = json.loads(path.read_text("utf-8"))
    loaded = LOADERS[old["format"]](path)
    loaded.save(tmp_path / path.name)
    new = json.loads((tmp_path / path.name).read_text("utf-8"))
    gone = {".abstain_early"}  # what it told has no part in any search any more
    assert not {*differences(ordered(old), ordered(new))} - gone


@in_turn("path", [path for path in FILES if path.stem.startswith(("policy", "mixture"))])
def test_a_policy_of_before_tells_how_it_was_tuned(path):
    tuning = recorded_tuning(rcjax.load_policy(path))
    assert len(tuning.models) == 3
    assert len(tuning.spec.targets) == 1
    assert tuning.spec.fit == {"copula": "Gumbel", "method": "tau"}


@in_turn("path", [path for path in FILES if path.stem.startswith("frontier")])
def test_every_point_of_a_frontier_of_before_is_a_policy(path):
    frontier = rcjax.load_frontier(path)
    for row in range(len(frontier.lam)):
        assert set(frontier.point(row).models) <= set(frontier.models)


def test_a_difference_is_a_difference():
    assert [*differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}], "c": 4})] == [".a[1].b"]
    assert [*differences({"a": [1]}, {"a": [1, 2]})] == [".a"]
    assert [*differences({"a": None}, {})] == [".a"]
