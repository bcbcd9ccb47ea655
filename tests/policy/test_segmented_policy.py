"""Policies of segments: which one answers, what they say together, their file."""

import copy
import json
import math
import pickle

import pytest
from bare_python import run_bare
from jsonschema import Draft202012Validator
from misses import in_turn
from policy_samples import make_policy

from rcjax.policy import Policy, Rule, SegmentedPolicy, load_policy

COMMON = make_policy(expected={"error": 0.1, "cost": 3e-5})
OWN = make_policy(
    rules={**COMMON.rules, "small": (Rule(0.9, "ask", "médium"), Rule(1.0, "answer"))},
    expected={"error": 0.2, "cost": 5e-5},
)
SHARING = make_policy(expected={"error": 0.05, "cost": 2e-5})
POLICIES = SegmentedPolicy(
    COMMON,
    {"de": OWN, "en": SHARING},
    {"de": 0.2, "en": 0.7},
    by="language",
    expected={"error": 0.08, "cost": 3e-5, "lam": 100.0},
    provenance={"tuning": {"target": {"budget": 3e-5}}},
)


def test_each_segment_has_its_policy_and_others_the_common_one():
    assert POLICIES.segment("de") == OWN
    assert POLICIES.segment("en") == SHARING
    assert POLICIES.segment("fr") == POLICIES.segment(None) == COMMON
    assert (POLICIES.own, POLICIES.sharing) == (("de",), ("en",))
    assert [POLICIES.knows(name) for name in ("de", "fr", None)] == [True, False, False]
    assert POLICIES.part("q", "de") == OWN
    assert COMMON.part("q", "de") == COMMON


def test_without_a_segment_it_is_the_common_policy():
    assert POLICIES.first == COMMON.first
    assert POLICIES.choose("q1") == COMMON
    assert POLICIES.step("small", confidence=0.2) == COMMON.step("small", confidence=0.2)


def test_what_it_says_is_of_all():
    large = Policy(("huge",), {"huge": COMMON.calibrations["large"]}, {"huge": [Rule(1, "answer")]}, {"huge": 1e-3})
    policies = SegmentedPolicy(COMMON, {"de": large}, {"de": 0.5}, by="language")
    assert policies.models == (*sorted(COMMON.models, key=COMMON.cost.__getitem__), "huge")
    assert policies.cost == {**COMMON.cost, "huge": 1e-3}
    assert policies.policies == (COMMON, large)
    assert math.isclose(sum(POLICIES.weights), 1)
    assert POLICIES.weights[1:] == (0.2, 0.7)


def test_its_file_comes_back(tmp_path):
    POLICIES.save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json") == SegmentedPolicy.load(tmp_path / "policy.json") == POLICIES
    assert pickle.loads(pickle.dumps(POLICIES)) == copy.deepcopy(POLICIES) == POLICIES
    Draft202012Validator(SegmentedPolicy.json_schema()).validate(POLICIES.to_json())


def test_an_older_reader_refuses_its_file():
    with pytest.raises(ValueError, match="rcjax-segments"):
        Policy.from_json(POLICIES.to_json())


@in_turn(
    ("changes", "message"),
    [
        ({"segments": {}}, "segments: must not be empty"),
        ({"shares": {"de": 0.2}}, "shares: must have as keys"),
        ({"shares": {"de": 0.9, "en": 0.2}}, "shares: must sum to 1 or less"),
        ({"shares": {"de": 0.0, "en": 0.2}}, r"shares\['de'\]"),
        ({"by": ""}, "by: must be a text that is not empty"),
        ({"schema_version": 2}, "upgrade rcjax"),
        ({"common": None}, "common"),
        ({"segments": {"de": OWN.to_json(), "en": {"format": "rcjax-policy"}}}, r"segments\['en'\]"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_place(changes, message):
    with pytest.raises(ValueError, match=message):
        SegmentedPolicy.from_json({**POLICIES.to_json(), **changes})


def test_the_standard_library_is_enough(tmp_path):
    POLICIES.save(tmp_path / "policy.json")
    path = str(tmp_path / "policy.json")
    code = f"from rcjax.policy import load_policy\nprint(load_policy({path!r}).segment('de').first)"
    assert "small" in run_bare(code)


def test_every_key_is_in_json():
    told = json.loads(json.dumps(POLICIES.to_json()))
    assert set(told) == {"format", "schema_version", "by", "shares", "expected", "common", "segments", "provenance"}
