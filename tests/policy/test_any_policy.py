"""A policy and a ladder are one type to who uses them."""

import json

import pytest
from policy_samples import make_ladder, make_policy

from rcjax.policy import AnyPolicy, Rule
from rcjax.policy.ladder import KINDS, policy_from_json
from rcjax.policy.record import with_spec
from rcjax.policy.spec import Spec

ONE, OTHER = make_policy(), make_policy(rules={**make_policy().rules, "small": [Rule(1, "answer")]})
SAMPLES = {
    "policy": ONE,
    "ladder": make_ladder((ONE, OTHER), 0.75),
}


@pytest.mark.parametrize("name", [*SAMPLES])
def test_it_is_read_written_and_described_alike(name):
    policy = SAMPLES[name]
    assert isinstance(policy, AnyPolicy)
    assert KINDS[policy.FORMAT] is type(policy)
    data = policy.to_json()
    assert list(data)[:2] == ["format", "schema_version"]
    assert policy_from_json(json.loads(json.dumps(data))) == policy
    assert policy.json_schema()["title"] == f"rcjax {name}"


def test_who_answers():
    assert ONE.choose("q1") is ONE
    assert {SAMPLES["ladder"].choose(query).rules == ONE.rules for query in range(20)} == {True, False}


@pytest.mark.parametrize("name", [*SAMPLES])
def test_all_parts_record_what_is_added(name):
    policy = SAMPLES[name]
    recorded = with_spec(policy, Spec(confidence=0.9))
    assert type(recorded) is type(policy)
    for part, before in zip(recorded.rungs, policy.rungs, strict=True):
        assert part.provenance["tuning"] == {**before.provenance.get("tuning", {}), "confidence": 0.9}
        assert part.rules == before.rules
    assert recorded.weights == policy.weights
