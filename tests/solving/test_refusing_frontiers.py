"""Frontiers that refuse, once they are found: files, replays, what a service sees, intervals."""

import numpy as np
import pytest
from policy_samples import make_policy
from tiers import thorough

import rcjax
from rcjax import load_frontier, replay, solve_frontier
from rcjax.policy import Abstain, Answer, Defer, Rule

pytestmark = pytest.mark.usefixtures("float64")

SEARCHES = ("all", "full", "adaptive")


@pytest.fixture(scope="module")
def refusing(demo, demo_lam):
    """The frontiers of the demo at one price, by search."""
    return {search: solve_frontier(demo, lam=demo_lam, cascades=search, abstain_price=0.3) for search in SEARCHES}


@pytest.mark.thorough
@pytest.mark.parametrize("search", thorough(SEARCHES, lambda search: search != "adaptive"))
def test_frontiers_survive_files(refusing, search, tmp_path):
    frontier = refusing[search]
    frontier.save(tmp_path / "frontier.json")
    loaded = load_frontier(tmp_path / "frontier.json")
    for name in ("error", "cost", "abstention", "refusals", "thresholds", "penalty"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(frontier, name), err_msg=name)
    assert loaded.abstain_price == 0.3
    for row in range(len(frontier.lam)):
        assert loaded.point(row) == frontier.point(row)


@pytest.mark.thorough
def test_steps_of_a_policy_that_abstains():
    rules = {
        "small": (Rule(0.2, "abstain"), Rule(0.6, "ask", "large"), Rule(1.0, "answer")),
        "médium": (Rule(1.0, "answer"),),
        "large": (Rule(0.3, "abstain"), Rule(1.0, "answer")),
    }
    policy = make_policy(rules=rules)
    assert policy.thresholds == {"small": None, "médium": None, "large": None}
    kinds = {"small": (Abstain, Defer, Answer), "large": (Abstain, Answer, Answer)}
    for model, expected in kinds.items():
        for confidence, kind in zip((0.01, 0.55, 0.97), expected, strict=True):
            decision = policy.step(model, confidence=confidence)
            assert type(decision) is kind, (model, confidence)
            assert decision.confidence == policy.calibrate(model, confidence=confidence)
    decision = policy.step("small", confidence=0.01)
    assert decision == Abstain("small", decision.confidence)
    with pytest.raises(AttributeError):
        decision.model = "large"
    with pytest.raises(ValueError, match="is for the action 'ask' only"):
        Rule(0.5, "abstain", "large")


@pytest.mark.thorough
def test_predictions_hold_on_fresh_queries(demo, refusing):
    fresh = rcjax.sample_log(20_000, seed=11)
    replayed = replay(refusing["all"], fresh)
    for name in ("error", "abstention"):
        gap = np.abs(np.asarray(getattr(replayed, name)) - np.asarray(getattr(refusing["all"], name)))
        assert (gap < 0.02).all(), name
