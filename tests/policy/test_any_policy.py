"""A policy, a mixture and policies of segments are one type to who uses them."""

import ast
import json

from imports import modules
from misses import in_turn
from policy_samples import make_policy

from rcjax.policy import AnyPolicy, Mixture, SegmentedPolicy
from rcjax.policy.policy_files import KINDS, policy_from_json
from rcjax.policy.record import with_record

ONE, OTHER = make_policy(), make_policy(provenance={"tuning": {"chain": "paper"}})
SAMPLES = {
    "policy": ONE,
    "mixture": Mixture((ONE, OTHER), (0.25, 0.75)),
    "segments": SegmentedPolicy(ONE, {"de": OTHER}, {"de": 0.25}, by="language"),
}


@in_turn("name", [*SAMPLES])
def test_it_is_read_written_and_described_alike(name):
    policy = SAMPLES[name]
    assert isinstance(policy, AnyPolicy)
    assert KINDS[policy.FORMAT] is type(policy)
    data = policy.to_json()
    assert list(data)[:2] == ["format", "schema_version"]
    assert policy_from_json(json.loads(json.dumps(data))) == policy
    assert policy.json_schema()["title"] == f"rcjax {name}"


@in_turn(
    "name, segment, index",
    [("policy", None, 0), ("policy", "de", 0), ("segments", None, 0), ("segments", "fr", 0), ("segments", "de", 1)],
)
def test_who_answers(name, segment, index):
    policy = SAMPLES[name]
    assert policy.part("q1", segment) is policy.policies[index]
    assert policy.knows(segment) == (index == 1)


def test_a_mixture_has_the_lot_decide_whatever_the_segment():
    mixture = SAMPLES["mixture"]
    for query in range(20):
        assert mixture.part(query, "de") is mixture.choose(query)


@in_turn("name", [*SAMPLES])
def test_all_parts_record_what_is_added(name):
    policy = SAMPLES[name]
    recorded = with_record(policy, mix=True)
    assert type(recorded) is type(policy)
    for part, before in zip(recorded.policies, policy.policies, strict=True):
        assert part.provenance["tuning"] == {**before.provenance.get("tuning", {}), "mix": True}
        assert part.rules == before.rules
    assert recorded.weights == policy.weights


def test_nobody_outside_of_the_package_asks_which_kind_it_is():
    forks = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                kind = ast.unparse(node.args[1])
                if not name.startswith("policy") and ("Mixture" in kind or "SegmentedPolicy" in kind):
                    forks.append(f"{name}:{node.lineno} {kind}")
    assert forks == []
