"""Frontiers whose thresholds pass on a share of the queries at one confidence: arrays, policies, files, words."""

import dataclasses
import json

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from misses import in_turn
from referencing import Registry, Resource

import rcjax
from rcjax._base.wording import describe_cascade
from rcjax.cli.replay_tables import _point
from rcjax.frontier.frontier import Frontier, frontier_from_json, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Agreements, Policies, Splits
from rcjax.policy import Policy, Rule

pytestmark = pytest.mark.usefixtures("float64")

SMALL, MIDDLE, LARGE = "llama3.2-1b", "llama3.1-8b", "llama3.1-70b"
THRESHOLDS = np.array([[0.6, 0.7, 0.0], [0.6, 0.7, 0.0], [0.5, 0.0, 0.0]])
MEMBERS = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 1]], bool)
SPLITS = Splits(
    np.array([[0.4, 0.7, 0.0], [0.6, 0.3, 0.0], [0.5, 0.0, 0.0]]), np.array([[0.3, 1, 1], [1, 0.8, 1], [1.0] * 3])
)


def cascades(refusals=None, splits=SPLITS):
    return Policies.of_cascades(THRESHOLDS, MEMBERS, refusals, splits=splits)


@pytest.fixture(scope="module")
def model():
    return rcjax.fit(rcjax.sample_log(96, seed=0).select([SMALL, MIDDLE, LARGE]))


def frontier_of(model, policies, **how):
    rows = np.array([0.3, 0.2, 0.1]), np.array([1.0, 2.0, 3.0]), np.zeros(3)
    return make_frontier(model, Points(np.array([1.0, 2.0, 3.0]), np.zeros(3, int), Outcomes(*rows), policies), **how)


def test_the_arrays_tell_the_splits():
    refusals = np.full((3, 3), 0.1) * MEMBERS * (THRESHOLDS > 0)
    for policies in (cascades(), cascades(refusals), cascades().comparing()):
        np.testing.assert_array_equal(policies.splits.above, SPLITS.above)
        np.testing.assert_array_equal(policies.splits.share, SPLITS.share)
        np.testing.assert_array_equal(policies.take(np.array([1])).splits.share, SPLITS.share[1:2])
    assert cascades(refusals).bounds.shape == (3, 3, 4)
    assert cascades(splits=None).splits is None
    again = cascades(splits=None).splitting()
    np.testing.assert_array_equal(again.splits.above, THRESHOLDS)
    plain = again.simplest()
    assert plain.shares is None
    np.testing.assert_array_equal(plain.bounds, cascades(splits=None).bounds)
    assert cascades().simplest().shares is not None


@pytest.mark.thorough
def test_points_are_policies_with_shares(model):
    frontier = frontier_of(model, cascades())
    answer = Rule(1, "answer")
    split = (Rule(0.4, "ask", MIDDLE), Rule(0.6, "ask", MIDDLE, share=0.3), answer)
    assert frontier.point(0).rules == {SMALL: split, MIDDLE: (Rule(0.7, "ask", LARGE), answer), LARGE: (answer,)}
    assert frontier.point(0).thresholds == {SMALL: 0.6, MIDDLE: 0.7, LARGE: None}
    never = Splits(np.array([[0.4, 0.0, 0.0]]), np.array([[0.3, 1.0, 1.0]]))
    ends = Policies.of_cascades(np.array([[1.0, 0.0, 0.0]]), MEMBERS[2:], splits=never).take(np.array([0, 0, 0]))
    rule = Rule(1, "ask", LARGE, share=0.3)
    assert frontier_of(model, ends).point(0).rules[SMALL] == (Rule(0.4, "ask", LARGE), rule, answer)


@pytest.mark.parametrize("kind", ["thresholds", "refusals", "rules", "agreements"])
def test_a_frontier_comes_back_from_its_file(model, tmp_path, kind):
    how = {"abstain_price": 0.2} if kind == "refusals" else {"compare": "text"} if kind == "agreements" else {}
    policies = cascades(np.full((3, 3), 0.1) * (THRESHOLDS > 0.1) if kind == "refusals" else None)
    if kind == "rules":
        policies = dataclasses.replace(policies, thresholds=None)
    if kind == "agreements":
        agreements = Agreements.none((3, 3))
        agreements.earlier[1, 1], agreements.differ[1, 1] = 0, 2
        policies = dataclasses.replace(policies, agreements=agreements)
    frontier = frontier_of(model, policies, **how)
    frontier.save(tmp_path / "frontier.json")
    data = json.loads((tmp_path / "frontier.json").read_text())
    if kind != "rules":
        assert [point.get("splits") for point in data["frontier"]] == [
            {SMALL: {"above": 0.4, "share": 0.3}},
            {MIDDLE: {"above": 0.3, "share": 0.8}},
            None,
        ]
    read = rcjax.load_frontier(tmp_path / "frontier.json")
    assert read.to_json() == frontier.to_json()
    for row in range(3):
        assert read.point(row).rules == frontier.point(row).rules
    schemas = (rcjax.CascadeModel.json_schema(), Policy.json_schema())
    registry = Registry().with_resources([(one["$id"], Resource.from_contents(one)) for one in schemas])
    Draft202012Validator(Frontier.json_schema(), registry=registry).validate(data)


def test_a_split_of_nobody_is_none(model):
    plain = frontier_of(model, cascades(splits=None)).to_json()
    assert frontier_from_json(plain).policies.shares is None
    nobody = frontier_of(model, cascades(splits=Splits(THRESHOLDS, np.ones((3, 3)))))
    assert nobody.to_json() == plain


@in_turn(
    "splits, message",
    [
        ([], r"frontier\[0\].splits: must be an object"),
        ({"huge": {"above": 0.1, "share": 0.5}}, r"splits\['huge'\]: must be of a model of the point"),
        ({SMALL: 0.5}, r"splits\['llama3.2-1b'\]: must be an object"),
        ({SMALL: {"above": 0.1}}, r"splits\['llama3.2-1b'\].share: must be a number.*missing"),
        ({SMALL: {"above": 0.1, "share": 1.0}}, r"\.share: must lie between 0 and 1"),
        ({SMALL: {"above": 0.6, "share": 0.5}}, r"\.above: must be at least .* 0, and below its threshold, 0.6"),
        ({SMALL: {"above": "x", "share": 0.5}}, r"\.above: must be a number"),
    ],
)
def test_splits_that_cannot_be(model, splits, message):
    data = frontier_of(model, cascades()).to_json()
    data["frontier"][0]["splits"] = splits
    with pytest.raises(ValueError, match=message):
        frontier_from_json(data)


def test_words(model):
    frontier = frontier_of(model, cascades())
    told = [describe_cascade(point) for point in frontier.to_json()["frontier"]]
    assert told[0] == f"{SMALL} >0.60 (70 % of >0.40) → {MIDDLE} >0.70 → {LARGE}"
    assert told[2] == f"{SMALL} >0.50 → {LARGE}"
    assert [describe_cascade(_point(frontier.point(row).to_json())) for row in range(3)] == told
    rules = dict(frontier.point(0).to_json(), thresholds=None)
    assert describe_cascade(rules).splitlines()[0] == f"{SMALL}: ≤0.40 → {MIDDLE}, ≤0.60 30 % → {MIDDLE}, else answer"
