"""The JSON Schema of a policy, held to what `Policy.from_json` reads and refuses."""

import json
import math
from importlib import resources
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator
from policy_samples import edited, is_json, make_json, make_policy, places, policies, wrong
from test_policy_files import BROKEN
from tiers import examples

from rcjax.policy import Action, Policy, Transform

SCHEMA = Draft202012Validator(Policy.json_schema())

# What relates one part of a file to another, or goes deeper than a schema looks.
BEYOND = ("must have as keys", "increasing order", "as its last up_to", "must be a later model", "last model has to")
BEYOND += ("must be at most `largest`", "nested more than", "provenance", "no rule is left", "as in the rule before")


def refusal(data):
    try:
        Policy.from_json(data)
    except ValueError as problem:
        return str(problem)
    return None


def agrees(data):
    """Whether schema and reader agree on a JSON value, where a schema can tell."""
    problem = refusal(data)
    if problem is None:
        return SCHEMA.is_valid(data)
    return not SCHEMA.is_valid(data) or any(words in problem for words in BEYOND)


def test_the_schema_is_one_and_is_in_the_package():
    Draft202012Validator.check_schema(SCHEMA.schema)
    assert (
        json.loads(resources.files("rcjax.policy").joinpath("policy.schema.json").read_text("utf-8")) == SCHEMA.schema
    )


def test_the_schema_knows_the_words_that_the_reader_knows():
    definitions = SCHEMA.schema["$defs"]
    assert tuple(definitions["rule"]["properties"]["action"]["enum"]) == get_args(Action)
    assert tuple(definitions["calibration"]["properties"]["transform"]["enum"]) == get_args(Transform)


@settings(max_examples=examples(100), deadline=None)
@given(policy=policies())
def test_every_policy_is_valid(policy):
    SCHEMA.validate(json.loads(json.dumps(policy.to_json())))


@pytest.mark.parametrize(("path", "value", "message"), [case for case in BROKEN if is_json(edited(*case[:2]))])
def test_what_the_reader_refuses_is_invalid(path, value, message):
    data = json.loads(json.dumps(edited(path, value)))
    assert agrees(data)


@settings(max_examples=examples(400), deadline=None)
@given(path=st.sampled_from(list(places(make_policy().to_json()))), value=wrong)
def test_schema_and_reader_agree_on_replaced_values(path, value):
    data = edited(path, value)
    if is_json(data) and not (path == ("schema_version",) and value == 1.0):  # 1.0 is an integer to a schema
        assert agrees(data)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.recursive(st.none() | st.floats(allow_nan=False) | st.text(), lambda x: st.dictionaries(st.text(), x)))
def test_other_values_are_invalid(data):
    assert not SCHEMA.is_valid(data)


def test_unknown_keys_are_valid():
    data = make_json(later={"deep": [1]})
    data["rules"]["large"][0]["comment"] = "new"
    SCHEMA.validate(data)
    assert refusal(data) is None
    assert math.isfinite(data["rules"]["large"][0]["up_to"])
