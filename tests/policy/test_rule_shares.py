"""Rules for a share of the queries: who is in it, what cannot be, and files."""

import hashlib
import json
import pickle

import pytest
from jsonschema import Draft202012Validator
from misses import in_turn

from rcjax import load_policy
from rcjax.policy import (
    Abstain,
    Agreement,
    Calibration,
    Defer,
    Policy,
    Rule,
)

SCHEMA = Draft202012Validator(Policy.json_schema())
PLAIN = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
ANSWER = Rule(1, "answer")
SPLIT = (Rule(0.2, "ask", "large"), Rule(0.45, "ask", "large", share=0.3), ANSWER)
QUERIES = [f"q{i}" for i in range(4000)]


def policy_of(small=SPLIT, middle=(ANSWER,), **more):
    names = ("small", "middle", "large")
    rules = dict(zip(names, (small, middle, (ANSWER,)), strict=True))
    return Policy(names, dict.fromkeys(names, PLAIN), rules, dict.fromkeys(names, 1.0), **more)


def asks(policy, model, query, confidence=0.5):
    return isinstance(policy.step(model, confidence=confidence, query=query), Defer)


# Φ is 1/3 at a confidence of 0.5, inside the split interval, 0.09 at 0.1, below it, and ½ at 1, above.


def test_a_share_of_the_queries_is_passed_on_the_same_at_every_retry():
    policy = policy_of()
    passed = [asks(policy, "small", query) for query in QUERIES]
    assert sum(passed) / len(passed) == pytest.approx(0.3, abs=0.03)
    assert passed == [asks(policy, "small", query) for query in QUERIES]
    assert policy.step("small", confidence=0.5, query=7) == policy.step("small", confidence=0.5, query="7")
    assert all(asks(policy, "small", query, 0.1) and not asks(policy, "small", query, 1.0) for query in QUERIES[:50])
    drawn = [asks(policy, "small", None) for _ in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.3, abs=0.05)
    with pytest.raises(TypeError, match="query must be"):
        policy.step("small", confidence=0.5, query=1.5)


def test_the_lot_is_the_hash_that_the_schema_tells():
    policy = policy_of()
    for query in QUERIES[:200]:
        digest = hashlib.sha256(f"share:small:{query}".encode()).digest()
        lot = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
        assert asks(policy, "small", query) == (lot < 0.3)


def test_what_is_left_goes_by_the_next_rule_and_lots_of_models_are_independent():
    chain = (Rule(0.4, "ask", "middle", share=0.5), Rule(0.4, "abstain", share=0.4), Rule(0.4, "ask", "large"), ANSWER)
    policy = policy_of(chain, SPLIT)
    decided = [policy.step("small", confidence=0.5, query=query) for query in QUERIES]
    counts = [
        sum(isinstance(one, Defer) and one.next_model == "middle" for one in decided),
        sum(isinstance(one, Abstain) for one in decided),
        sum(isinstance(one, Defer) and one.next_model == "large" for one in decided),
    ]
    assert [count / len(QUERIES) for count in counts] == pytest.approx([0.5, 0.2, 0.3], abs=0.03)
    reached = [query for query, one in zip(QUERIES, decided, strict=True) if getattr(one, "next_model", "") == "middle"]
    assert sum(asks(policy, "middle", query) for query in reached) / len(reached) == pytest.approx(0.3, abs=0.04)


def test_thresholds_are_the_upper_ends_of_splits():
    assert policy_of().thresholds == {"small": 0.45, "middle": None, "large": None}
    assert policy_of((Rule(0.45, "ask", "large", share=0.3), ANSWER)).thresholds["small"] == 0.45
    assert policy_of((Rule(1, "ask", "large", share=0.3), ANSWER)).thresholds["small"] == 1.0
    for other in (
        (Rule(0.2, "ask", "middle"), *SPLIT[1:]),
        (Rule(0.2, "ask", "large", share=0.5), *SPLIT[1:]),
        (*SPLIT[:2], Rule(0.6, "abstain"), ANSWER),
    ):
        assert policy_of(other).thresholds["small"] is None


def test_files(tmp_path):
    policy = policy_of()
    policy.save(tmp_path / "policy.json")
    data = json.loads((tmp_path / "policy.json").read_text())
    assert data["rules"]["small"][0] == {"up_to": 0.2, "action": "ask", "model": "large"}
    assert data["rules"]["small"][1] == {"up_to": 0.45, "action": "ask", "model": "large", "share": 0.3}
    assert load_policy(tmp_path / "policy.json") == policy == pickle.loads(pickle.dumps(policy))
    SCHEMA.validate(data)


@in_turn(
    "place, share, message",
    [
        (1, 0.0, r"rules\['small'\]\[1\].share: must lie between 0 and 1; leave it out for all, but it is 0"),
        (1, 1.0, r"rules\['small'\]\[1\].share: must lie between 0 and 1"),
        (1, 1.5, r"rules\['small'\]\[1\].share: must be between 0 and 1"),
        (1, "half", r"rules\['small'\]\[1\].share: must be a number"),
        (1, True, r"rules\['small'\]\[1\].share: must be a number"),
        (2, 0.5, r"rules\['small'\]\[2\].share: must not be: no rule is left for the others, but it is 0.5"),
    ],
)
def test_shares_that_cannot_be(place, share, message):
    data = policy_of().to_json()
    data["rules"]["small"][place]["share"] = share
    with pytest.raises(ValueError, match=message):
        Policy.from_json(data)
    assert SCHEMA.is_valid(data) == (place == 2)


def test_where_answers_are_compared_a_share_may_not_go_another_way():
    agreements = {"middle": Agreement("small", "large")}
    with pytest.raises(ValueError, match=r"rules\['small'\]\[1\].model: must be 'middle'.*compares answers"):
        policy_of((Rule(0.4, "ask", "middle", share=0.5), Rule(1, "ask", "large")), agreements=agreements)
    split = (Rule(0.4, "ask", "middle", share=0.5), Rule(0.5, "abstain", share=0.5), Rule(1, "answer"))
    policy = policy_of(split, agreements=agreements)
    policy.step("large", confidence=0.5, answer="A", answers={"middle": "A"}, query="q1")
