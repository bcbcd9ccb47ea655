"""All our files: their readers held to anything.

Any place of a good file is replaced by any value: the reader makes of it what can be used, or refuses in one line.
"""

import json
from pathlib import Path

import pytest
from helpers.policy_samples import edited, places, wrong
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.model.cascade_model import model_from_json
from rcjax.policy.ladder import policy_from_json
from rcjax.solving.frontier.frontier import frontier_from_json

pytestmark = pytest.mark.usefixtures("float64")
FOLDER = Path(__file__).parents[2] / "saved_files"
KINDS = {
    "model": (rcjax.CascadeModel, model_from_json),
    "frontier": (rcjax.Frontier, frontier_from_json),
    "policy": (rcjax.Policy, policy_from_json),
    "ladder": (rcjax.Ladder, policy_from_json),
}
SAMPLES = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted(FOLDER.glob("*.json"))
    if path.stem.startswith(tuple(KINDS))
}


def kind_of(name):
    return name.partition("_")[0]


def refusal(name, data):
    """Why a reader refuses, in one line, or None; what it reads can be used and written."""
    try:
        read = KINDS[kind_of(name)][1](data)
    except ValueError as problem:
        text = str(problem)
        assert len(text.splitlines()) == 1
        assert len(text) < 1000
        return text
    json.dumps(read.to_json(), allow_nan=False)
    if kind_of(name) == "frontier":
        assert read.policy_at(len(read.lam) // 2).models
    if kind_of(name) in ("policy", "ladder"):
        assert read.choose("q").models
    return None


@pytest.mark.parametrize("name", SAMPLES)
def test_saved_files_are_read(name):
    assert refusal(name, SAMPLES[name]) is None


PLACES = {name: list(places(data)) for name, data in SAMPLES.items()}


@st.composite
def tampered(draw):
    """The name of a good file, and its content with one entry replaced by any value or deleted."""
    name = draw(st.sampled_from(list(PLACES)))
    path = draw(st.sampled_from(PLACES[name]))
    return name, edited(path, draw(wrong), SAMPLES[name])


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=tampered())
def test_any_value_at_any_place_is_read_or_refused(case):
    refusal(*case)


@settings(max_examples=examples(100), deadline=None)
@example(data=[{"\x1f" * 80: [["\x1f" * 80] * 6] * 6}] * 6)
@given(data=st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_other_value_is_refused(data):
    for name in KINDS:
        assert refusal(name, data)


def test_unknown_keys_are_ignored():
    for name, data in SAMPLES.items():
        assert refusal(name, data | {"later": {"deep": [1]}}) is None
