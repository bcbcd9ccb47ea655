"""Policies as files: what is written, what is refused, what a failure leaves behind."""

import dataclasses
import json
import math
import pickle

import pytest
from helpers.policy_samples import PLAIN, edited, make_json, make_policy, policies
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.policy import Answer, Defer, Policy, load_policy


@settings(max_examples=examples(60), deadline=None)
@given(policy=policies())
def test_a_policy_read_from_its_file_is_equal(tmp_path_factory, policy):
    path = tmp_path_factory.getbasetemp() / "round-trip.json"
    policy.save(path)
    assert Policy.load(path) == policy
    assert Policy.from_json(policy.to_json()) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    content = path.read_bytes()
    load_policy(path).save(path)
    assert path.read_bytes() == content


def test_the_file_has_its_format_and_version(tmp_path):
    make_policy().save(tmp_path / "policy.json")
    data = json.loads((tmp_path / "policy.json").read_text("utf-8"))
    assert data["format"] == "rcjax-policy"
    assert data["schema_version"] == 1
    assert data["rules"]["médium"] == [
        {"up_to": 0.6, "action": "ask", "model": "large"},
        {"up_to": 1.0, "action": "answer"},
    ]
    line = dataclasses.asdict(PLAIN)
    assert data["calibrations"]["large"] == {name: value for name, value in line.items() if value is not None}
    assert data["provenance"] == {**data["provenance"], "notes": ["λ", True, None, 0.5]}


def test_a_byte_order_mark_and_a_null_are_accepted(tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps(make_json(prices=None)), "utf-8-sig")
    assert load_policy(tmp_path / "policy.json") == make_policy(prices=None)


# One of each check; tests/solving/frontier/test_damaged_files.py puts any value at any place.
BROKEN = [
    (("schema_version",), True, "this file has version True; rcjax reads 1$"),
    (("schema_version",), 2, "this file has version 2; rcjax reads 1: a newer rcjax wrote it: upgrade rcjax"),
    (("models",), ["small", "médium", "large", "more"], "calibrations: must have as keys .*'more'"),
    (("calibrations", "small", "slope"), math.nan, r"\.slope: must be between .* but it is nan"),
    (("calibrations", "small", "smallest"), 9.0, r"\.smallest: must be at most `largest`"),
    (("rules", "small", 0, "up_to"), 0.7, r"rules\['small'\]: must have its up_to in increasing order"),
    (("rules", "small", 0, "model"), "huge", r"\.model: must be a later model, .*'large'.* but it is 'huge'"),
    (("rules", "large", 0, "model"), "small", r"model: is for the action 'ask' only"),
    (("provenance", "x"), {1}, r"provenance\['x'\]: must be a JSON value"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_wrong_values_in_a_file_are_refused_with_their_place(path, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        Policy.from_json(edited(path, value))
    assert "\n" not in str(caught.value)


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "file: must hold a JSON object"),
        ('{"format": "rcjax-policy", "format": "rcjax-policy"}', "'format' is there twice"),
        (nested(100_000), "not JSON"),
        (json.dumps(make_json()).replace('["\\u03bb', nested(80)[:-1] + ',"'), "nested more than"),
        (json.dumps(make_json()).replace("0.25", "1e999"), "intercept: must be between"),
        (json.dumps(make_json()).replace("0.25", "1" * 5000), "not JSON|intercept"),
    ],
)
def test_broken_files_are_refused(tmp_path, text, message):
    path = tmp_path / "policy.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_damaged_files_load_or_are_refused_in_one_line(tmp_path_factory, data):
    path, valid = tmp_path_factory.getbasetemp() / "damaged.json", json.dumps(make_policy().to_json()).encode()
    at, junk = data.draw(st.integers(0, len(valid) - 1)), data.draw(st.binary(max_size=3))
    path.write_bytes(valid[:at] + junk + valid[at + len(junk) :] if junk else valid[:at])
    policy, said = None, ""
    try:
        policy = load_policy(path)
    except ValueError as problem:
        said = str(problem)
    assert len(said.splitlines()) <= 1
    if policy is not None:
        assert junk
        assert isinstance(policy.step(policy.first_model, confidence=0.5), (Answer, Defer))
