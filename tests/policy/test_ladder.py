"""Ladders: rungs, positions, expected figures, files; from frontiers, in replays and on the command line."""

import dataclasses
import math
import textwrap
from hashlib import sha256

import numpy as np
import pytest
from helpers.policy_samples import make_ladder, make_policy, policies
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.policy import Defer, Ladder, Policy, Rule, load_policy, policy as policy_module
from rcjax.policy.ladder import policy_from_json
from rcjax.policy.policy import hash_to_uniform
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import lower_hull, thin_hull

CHEAP = make_policy(expected={"error": 0.3, "cost": 1e-5, "error_low": 0.25, "level": 0.9})
DEAR = make_policy(
    rules={**make_policy().rules, "small": (Rule(0.9, "ask", "médium"), Rule(1.0, "answer"))},
    expected={"error": 0.1, "cost": 5e-5, "error_low": 0.05, "level": 0.9},
)
DEAREST = make_policy(expected={"error": 0.05, "cost": 9e-5})
LADDER = Ladder((CHEAP, DEAR, DEAREST), 0.75, budget=4e-5)


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(192, seed=0).select(("llama3.2-1b", "llama3.1-8b", "llama3.1-70b"))


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.tuning.select_frontier(log).frontier


@pytest.mark.parametrize(
    ("name", "figure"), [("error", -0.1), ("error", 1.5), ("cost", -1e-6), ("lam", -3.0), ("error_cost", -0.5)]
)
def test_figures_edited_by_hand_are_refused(name, figure):
    data = LADDER.to_json()
    data["rungs"][1]["expected"][name] = figure
    with pytest.raises(ValueError, match=rf"^rungs\[1\]\.expected\.{name}: must be between 0 and .*it is {figure}"):
        Ladder.from_json(data)


def test_a_query_draws_its_rung_by_the_documented_hash():
    for query in ("q1", "größe", 7, "", "\ud800"):
        digest = sha256(f"rung:{query}".encode("utf-8", "surrogatepass")).digest()
        lot = int.from_bytes(digest[:8], "big") / 2**64
        assert LADDER.choose(query) is (DEAR if lot < 0.75 else CHEAP)
        assert LADDER.choose(query, 1.5) is (DEAREST if lot < 0.5 else DEAR)
    assert LADDER.choose(7) is LADDER.choose("7")
    assert LADDER.choose("q1", 2.0) is DEAREST
    drawn = [LADDER.choose() is DEAR for _ in range(2000)]
    assert 0.7 < np.mean(drawn) < 0.8


@pytest.mark.parametrize("position", [-1, -1e-9, 2.5, 5.0, math.nan, math.inf, True])
def test_a_position_off_the_ladder_is_refused(position):
    with pytest.raises(ValueError, match="position: must be"):
        LADDER.choose("q", position)


def test_lots_of_queries_are_uniform_and_purposes_are_independent():
    lots = np.array([[hash_to_uniform(purpose, i) for i in range(20_000)] for purpose in ("rung", "shadow")])
    assert ((lots >= 0) & (lots < 1)).all()
    counts = np.histogram2d(*lots, bins=10, range=[[0, 1], [0, 1]])[0]
    chi2 = ((counts - 200) ** 2 / 200).sum()  # 99 degrees of freedom: its mean, with a deviation of 14
    assert 50 < chi2 < 155


def test_expected_figures_are_those_of_two_rungs_by_the_position():
    expected = LADDER.expected
    assert (LADDER.adjacent_rungs, LADDER.weights) == ((CHEAP, DEAR), (0.25, 0.75))
    assert expected["error"] == pytest.approx(0.15)
    assert expected["cost"] == pytest.approx(4e-5)
    assert expected["error_low"] == pytest.approx(0.1)
    assert expected["level"] == 0.9
    assert expected["lam"] == pytest.approx(0.2 / 4e-5)
    assert expected["error_cost"] == pytest.approx(1 / expected["lam"])
    assert "cost_low" not in expected
    assert dataclasses.replace(LADDER, position=1.5).expected["error_low"] is None
    for position, rung in enumerate(LADDER.rungs):
        on = dataclasses.replace(LADDER, position=position)
        assert (on.expected, on.adjacent_rungs, on.weights) == (rung.expected, (rung,), (1.0,))


def test_lam_of_a_ladder_counts_abstentions_at_their_price():
    first, second = (
        make_policy(expected={"error": error, "cost": cost, "abstention": abstention, "abstain_price": 0.5})
        for error, cost, abstention in ((0.2, 1e-5, 0.2), (0.1, 5e-5, 0.1))
    )
    expected = Ladder((first, second), 0.5).expected
    assert (expected["abstain_price"], expected["abstention"]) == (0.5, pytest.approx(0.15))
    assert expected["lam"] == pytest.approx(0.15 / 4e-5)


# What a policy and a ladder have in common

ONE, OTHER = make_policy(), make_policy(rules={**make_policy().rules, "small": [Rule(1, "answer")]})
SAMPLES = {"policy": ONE, "ladder": make_ladder((ONE, OTHER), 0.75)}


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_loop_of_the_modules_docstring_serves_a_policy_and_a_ladder(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SAMPLES[kind].save("policy.json")
    block = "\n".join(line for line in (policy_module.__doc__ or "").splitlines() if line.startswith("    "))
    asked = []

    def ask(model, query):
        asked.append(model)
        return -5.0

    names = {"load_policy": load_policy, "Defer": Defer, "ask": ask, "query": "?", "query_id": 7}
    exec(textwrap.dedent(block), names)
    rung = SAMPLES[kind].choose(7)
    assert asked[0] == rung.first_model
    assert names["decision"] == rung.step(asked[-1], logprob=-5.0)


# Files


def test_a_ladder_has_the_models_costs_and_prices_of_all_rungs():
    plain = make_policy().calibrations["small"]
    one = Policy(("tiny",), {"tiny": plain}, {"tiny": [Rule(1, "answer")]}, {"tiny": 1e-6})
    ladder = make_ladder((one, make_policy(prices=None)), 0.0)
    assert ladder.models == ("tiny", "small", "médium", "large")
    assert ladder.cost == {**make_policy().cost, "tiny": 1e-6}
    assert ladder.prices is None
    assert LADDER.prices == make_policy().prices


@settings(max_examples=examples(40), deadline=None)
@given(first=policies(), position=st.floats(0, 1), budget=st.none() | st.floats(1e-9, 1))
def test_round_trip_is_exact_and_valid(tmp_path_factory, first, position, budget):
    path = tmp_path_factory.getbasetemp() / "ladder.json"
    first = dataclasses.replace(first, prices={key: {"input": 0.1} for key in first.models[:1]})
    ladder = make_ladder((first, first), position, budget)
    ladder.save(path)
    assert load_policy(path) == Ladder.load(path) == ladder
    assert load_policy(path).provenance == first.provenance


RUNGS = LADDER.to_json()["rungs"]
ALONE = {"models": ["large"], "rules": {"large": [{"up_to": 1.0, "action": "answer"}]}}
BROKEN = [
    ({"position": 2.5}, r"position: must be between 0 and 2, but it is 2.5"),
    ({"rungs": [RUNGS[0], RUNGS[1] | {"rules": {}}]}, r"rungs\[1\].rules"),
    ({"rungs": RUNGS[::-1]}, r"rungs\[1\].expected.cost: must be above"),
    ({"calibrations": {}}, r"rungs\[0\].calibrations"),
    ({"rungs": [ALONE], "position": 0.0, "calibrations": {}}, r"rungs\[0\].calibrations"),
    ({"format": "rcjax-policy"}, "format: must be"),
    ({"models": []}, "models: "),
    ({"models": ["../x"]}, "models: must be those of the rungs: small, "),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_ladders_are_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        Ladder.from_json(LADDER.to_json() | change)
    assert len(str(caught.value).splitlines()) == 1


def test_rungs_of_several_frontiers_are_refused():
    other = make_policy(expected={"cost": 9e-4}, cost={**make_policy().cost, "small": 2e-5})
    with pytest.raises(ValueError, match=r"rungs\[1\]: must have the calibrations, costs, prices and provenance"):
        Ladder((CHEAP, other), 0.0)


# Frontiers


@given(
    points=st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), min_size=1, max_size=60),
    tolerance=st.floats(0, 50),
    most=st.integers(2, 12),
)
def test_a_thinned_hull_is_near_the_whole_one(points, tolerance, most):
    cost, error = np.array(points, float).T
    hull = lower_hull(cost, error)
    cost, error = cost[hull], error[hull]
    few = thin_hull(cost, error, most, tolerance)
    assert len(few) <= most
    assert (few[0], few[-1]) == (0, len(hull) - 1)
    assert (np.diff(few) > 0).all()
    if len(few) > 1:
        off = np.interp(cost, cost[few], error[few]) - error
        assert off.min() >= -1e-9
        if len(hull) <= most:
            assert off.max() <= tolerance + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.05, 0.3, 0.31, 0.6])
def test_a_budget_is_met_exactly_with_the_error_of_the_hull(frontier, share):
    cost, error = np.asarray(frontier.cost), np.asarray(frontier.error)
    best = cost[error.argmin()]
    budget = cost.min() + share * (best - cost.min())
    ladder = frontier.policy(budget=budget)
    assert ladder.expected["cost"] == pytest.approx(budget, rel=1e-12)
    hull = lower_hull(cost, error)
    assert 0 <= ladder.expected["error"] - np.interp(budget, cost[hull], error[hull]) + 1e-12 <= 1e-3
    again = frontier.policy(max_error=ladder.expected["error"])
    assert again.expected["cost"] == pytest.approx(budget, rel=1e-6)
    assert (ladder.budget, again.budget) == (budget, None)


@pytest.mark.thorough
def test_a_budget_beyond_the_ends_is_the_last_rung(frontier):
    best = frontier.policy(budget=1.0)
    assert best.position == len(best.rungs) - 1
    assert best.adjacent_rungs == (frontier.policy_at(int(np.asarray(frontier.error).argmin()), Target("budget", 1.0)),)
    assert frontier.policy(max_error=1.0).expected["cost"] == pytest.approx(float(frontier.cost.min()))
    with pytest.raises(rcjax.InfeasibleError, match="the cheapest costs"):
        frontier.policy(budget=1e-9)
    with pytest.raises(rcjax.InfeasibleError, match="the best errs"):
        frontier.policy(max_error=0.001)


# Replay


def test_standard_errors_of_a_replay_are_those_of_each_querys_mean(frontier, log):
    """Against a walk in plain Python through every query by both policies."""
    ladder = frontier.policy(budget=float(np.median(np.asarray(frontier.cost))))
    part = log.take(slice(120))
    logprob, correct = np.asarray(part.logprob), np.asarray(part.correct)
    mean_cost = dict(zip(part.models, np.asarray(part.query_cost).mean(0), strict=True))
    wrong, charged = np.zeros(120), np.zeros(120)
    for policy, weight in zip(ladder.adjacent_rungs, ladder.weights, strict=True):
        for i in range(120):
            model = policy.first_model
            while True:
                charged[i] += weight * mean_cost[model]
                j = part.models.index(model)
                decision = policy.step(model, logprob=float(logprob[i, j]))
                if not hasattr(decision, "next_model"):
                    break
                model = decision.next_model
            wrong[i] += weight * (not correct[i, j])
    seen = rcjax.replay(ladder, part)
    for values, mean, se in ((wrong, seen.error, seen.error_se), (charged, seen.cost, seen.cost_se)):
        assert float(mean) == pytest.approx(values.mean(), rel=1e-9)
        assert float(se) == pytest.approx(values.std(ddof=1) / math.sqrt(120), rel=1e-9)


def test_files_that_no_tuning_writes_are_refused_before_they_are_read(tmp_path):
    data = LADDER.to_json()
    with pytest.raises(ValueError, match=r"^rungs: must be at most 1,000"):
        policy_from_json(data | {"rungs": data["rungs"][:1] * 1_001})
    path = tmp_path / "policy.json"
    path.write_text(" " * 10_000_001)
    with pytest.raises(ValueError, match=r"policy.json: larger than 10 MB: a policy has some 30 kB"):
        load_policy(path)
