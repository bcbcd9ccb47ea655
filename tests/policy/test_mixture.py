"""Mixtures: lots, expected figures, files; from frontiers, in replays and on the command line."""

import copy
import dataclasses
import json
import math
import pickle
from hashlib import sha256

import numpy as np
import pytest
from bare_python import run_bare
from command_line import fail, run, succeed, write_folder
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator
from misses import in_turn
from policy_samples import make_policy, policies
from tiers import examples

import rcjax
from rcjax._base.hashing import draw_lot
from rcjax.frontier.hull import meet
from rcjax.policy import Policy, Rule, load_policy
from rcjax.policy.mixture import Mixture

CHEAP = make_policy(expected={"error": 0.3, "cost": 1e-5, "error_low": 0.25, "level": 0.9})
DEAR = make_policy(
    rules={**make_policy().rules, "small": (Rule(0.9, "ask", "médium"), Rule(1.0, "answer"))},
    expected={"error": 0.1, "cost": 5e-5, "error_low": 0.05, "level": 0.9},
)
MIXTURE = Mixture((CHEAP, DEAR), (0.25, 0.75))


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(800, seed=0)


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.solve_frontier(rcjax.fit(log))


# Lots


def test_a_query_chooses_by_the_hash_that_the_schema_describes():
    for query in ("q1", "größe", 7, "", "\ud800"):
        digest = sha256(f"mixture:{query}".encode("utf-8", "surrogatepass")).digest()
        lot = int.from_bytes(digest[:8], "big") / 2**64
        assert MIXTURE.choose(query) is (CHEAP if lot < 0.25 else DEAR)
        assert MIXTURE.choose(query) is MIXTURE.choose(query)
    assert MIXTURE.choose(7) is MIXTURE.choose("7")


def test_lots_of_queries_are_uniform_and_purposes_are_independent():
    lots = np.array([[draw_lot(purpose, i) for i in range(20_000)] for purpose in ("mixture", "shadow")])
    assert ((lots >= 0) & (lots < 1)).all()
    counts = np.histogram2d(*lots, bins=10, range=[[0, 1], [0, 1]])[0]
    chi2 = ((counts - 200) ** 2 / 200).sum()  # 99 degrees of freedom: its mean, with a deviation of 14
    assert 50 < chi2 < 155


@given(weights=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
def test_shares_of_queries_are_the_weights(weights):
    shares = [weight / sum(weights) for weight in weights]
    parts = tuple(make_policy(provenance={"part": i}) for i in range(len(shares)))
    mixture = Mixture(parts, tuple(shares))
    chosen = [mixture.choose(i).provenance["part"] for i in range(2000)]
    seen = np.bincount(chosen, minlength=len(shares)) / 2000
    assert np.abs(seen - shares).max() < 0.05
    assert not seen[np.array(weights) == 0].any()


def test_without_an_id_the_draw_is_random():
    drawn = [MIXTURE.choose() is DEAR for _ in range(2000)]
    assert 0.7 < np.mean(drawn) < 0.8


# Values


def test_expected_figures_are_weighted_means():
    expected = MIXTURE.expected
    assert expected["error"] == pytest.approx(0.15)
    assert expected["cost"] == pytest.approx(4e-5)
    assert expected["error_low"] == pytest.approx(0.1)
    assert expected["level"] == 0.9
    assert expected["lam"] == pytest.approx(0.2 / 4e-5)
    assert expected["error_cost"] == pytest.approx(1 / expected["lam"])
    assert "cost_low" not in expected
    assert Mixture((CHEAP, make_policy(expected={})), (0.5, 0.5)).expected["error"] is None
    assert Mixture((CHEAP,), (1.0,)).expected["error"] == 0.3


def test_the_price_of_a_refusal_counts_in_what_errors_are_saved_for():
    first, second = (
        make_policy(expected={"error": error, "cost": cost, "abstention": abstention, "abstain_price": 0.5})
        for error, cost, abstention in ((0.2, 1e-5, 0.2), (0.1, 5e-5, 0.1))
    )
    expected = Mixture((first, second), (0.5, 0.5)).expected
    assert (expected["abstain_price"], expected["abstention"]) == (0.5, pytest.approx(0.15))
    assert expected["lam"] == pytest.approx(0.15 / 4e-5)


def test_models_costs_and_prices_of_all_policies():
    one = Policy(
        ("tiny",), {"tiny": make_policy().calibrations["small"]}, {"tiny": [Rule(1, "answer")]}, {"tiny": 1e-6}
    )
    mixture = Mixture((make_policy(), one), (0.5, 0.5))
    assert mixture.models == ("tiny", "small", "médium", "large")
    assert mixture.cost == {**make_policy().cost, "tiny": 1e-6}
    assert mixture.prices == make_policy().prices
    assert Mixture((one,), (1,)).prices is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_mixtures_are_values(duplicate):
    assert duplicate(MIXTURE) == MIXTURE
    assert duplicate(MIXTURE).choose("q") == MIXTURE.choose("q")
    with pytest.raises(dataclasses.FrozenInstanceError):
        MIXTURE.weights = (1.0, 0.0)
    assert Mixture((CHEAP, DEAR), (0.75, 0.25)) != MIXTURE


# Files


@settings(max_examples=examples(40), deadline=None)
@given(first=policies(), second=policies(), share=st.floats(0, 1))
def test_round_trip_is_exact_and_valid(tmp_path_factory, first, second, share):
    path = tmp_path_factory.getbasetemp() / "mixture.json"
    mixture = Mixture((first, second), (share, 1 - share))
    mixture.save(path)
    assert load_policy(path) == Mixture.load(path) == mixture
    Draft202012Validator(Mixture.json_schema()).validate(json.loads(path.read_text("utf-8")))


def test_load_policy_tells_them_apart(tmp_path):
    make_policy().save(tmp_path / "policy.json")
    MIXTURE.save(tmp_path / "mixture.json")
    assert load_policy(tmp_path / "policy.json") == make_policy()
    assert load_policy(tmp_path / "mixture.json") == MIXTURE
    with pytest.raises(ValueError, match=r"format: must be 'rcjax-policy', .* 'rcjax-mixture'"):
        Policy.load(tmp_path / "mixture.json")
    with pytest.raises(ValueError, match="format: must be 'rcjax-mixture', as in every mixture"):
        Mixture.load(tmp_path / "policy.json")


BROKEN = [
    ({"schema_version": 2}, "schema version 2, this rcjax reads up to 1: upgrade rcjax"),
    ({"weights": [0.5]}, "weights: must be 2 numbers"),
    ({"weights": [0.5, 0.4]}, "weights: must sum to 1, but it is 0.9"),
    ({"weights": [1.5, -0.5]}, r"weights\[1\]: must be between 0"),
    ({"weights": [math.nan, 1.0]}, r"weights\[0\]: must be between"),
    ({"weights": None}, "weights: must be a list, not empty, but it is missing or null"),
    ({"policies": []}, "policies: must be a list, not empty"),
    ({"policies": [1, 2]}, r"policies\[0\].file: must hold a JSON object"),
    ({"policies": [CHEAP.to_json(), CHEAP.to_json() | {"models": []}]}, r"policies\[1\].models: must be a list"),
    ({"format": "rcjax-policy"}, "format: must be"),
]


@in_turn("change, message", BROKEN)
def test_broken_files(change, message):
    data = MIXTURE.to_json() | change
    with pytest.raises(ValueError, match=message) as caught:
        Mixture.from_json(data)
    assert len(str(caught.value).splitlines()) == 1


@in_turn("change, message", BROKEN)
def test_the_schema_refuses_what_it_can_see(change, message):
    data = MIXTURE.to_json() | change
    beyond = "sum" in message or "2 numbers" in message or math.nan in (change.get("weights") or [])
    assert Draft202012Validator(Mixture.json_schema()).is_valid(data) == beyond


CONTENT = json.dumps(MIXTURE.to_json()).encode()


@settings(max_examples=examples(150), deadline=None)
@given(at=st.integers(0, len(CONTENT) - 1), junk=st.binary(max_size=3), cut=st.booleans())
def test_damaged_files_load_or_are_refused(tmp_path_factory, at, junk, cut):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(CONTENT[:at] + junk + (b"" if cut else CONTENT[at + len(junk) :]))
    try:
        mixture = load_policy(path)
    except ValueError as problem:
        message = str(problem)
    else:
        message = ""
        assert mixture.choose("q").models
    assert len(message.splitlines()) <= 1


def test_a_service_needs_only_the_standard_library(tmp_path):
    MIXTURE.save(tmp_path / "mixture.json")
    program = """
from rcjax.policy import load_policy
mixture = load_policy(sys.argv[1])
assert mixture.json_schema()["title"] == "rcjax mixture"
print("".join("01"[mixture.choose(i) == mixture.policies[1]] for i in range(200)))
"""
    there = run_bare(program, tmp_path / "mixture.json")
    assert there == "".join("01"[MIXTURE.choose(i) is DEAR] for i in range(200))


# Frontiers


@given(
    values=st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True).map(sorted),
    target=st.integers(0, 60) | st.floats(0, 60),
)
def test_meeting_a_target(values, target):
    values = np.array(values, float)
    if target < values[0]:
        return
    places, weights = meet(values, target)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= 0
    assert np.dot(values[places], weights) == pytest.approx(min(target, values[-1]), rel=2e-9)
    assert len(places) == 1 or places[1] == places[0] + 1


@pytest.mark.thorough
@in_turn("share", [0.05, 0.3, 0.31, 0.6])
def test_a_budget_is_met_with_equality_and_error_is_no_higher(frontier, share):
    cost, error = np.asarray(frontier.cost), np.asarray(frontier.error)
    best = cost[error.argmin()]
    budget = cost.min() + share * (best - cost.min())
    mixture = frontier.mixture(budget=budget)
    assert mixture.expected["cost"] == pytest.approx(budget, rel=1e-12)
    assert mixture.expected["error"] <= frontier.policy(budget=budget).expected["error"] + 1e-12
    below = np.interp(budget, *zip(*sorted(zip(cost, error, strict=True)), strict=True))
    assert mixture.expected["error"] <= below + 1e-12
    again = frontier.mixture(max_error=mixture.expected["error"])
    assert again.expected["cost"] == pytest.approx(budget, rel=1e-6)


def test_beyond_the_best_point_there_is_nothing_to_mix(frontier):
    mixture = frontier.mixture(budget=1.0)
    assert mixture.policies == (frontier.policy(budget=1.0),)
    assert mixture.weights == (1.0,)
    assert frontier.mixture(max_error=1.0).expected["cost"] == pytest.approx(float(frontier.cost.min()))


def test_targets_of_a_mixture(frontier):
    with pytest.raises(rcjax.InfeasibleError, match="the cheapest costs"):
        frontier.mixture(budget=1e-9)
    with pytest.raises(rcjax.InfeasibleError, match="the best errs"):
        frontier.mixture(max_error=0.001)
    with pytest.raises(ValueError, match="exactly one"):
        frontier.mixture()


# Replay


def test_a_replay_is_the_weighted_mean(frontier, log):
    budget = float(np.median(np.asarray(frontier.cost)))
    mixture = frontier.mixture(budget=budget)
    assert len(mixture.policies) == 2
    seen = rcjax.replay(mixture, log)
    alone = [rcjax.replay(policy, log) for policy in mixture.policies]
    for name in ("error", "cost", "spent"):
        mean = np.dot(mixture.weights, [float(getattr(each, name)) for each in alone])
        assert float(getattr(seen, name)) == pytest.approx(mean, rel=1e-12)
    shares = [dict(zip(each.models, np.asarray(each.share), strict=True)) for each in alone]
    for name, share in zip(seen.models, np.asarray(seen.share), strict=True):
        mean = sum(w * each.get(name, 0.0) for w, each in zip(mixture.weights, shares, strict=True))
        assert share == pytest.approx(mean, abs=1e-12)
    assert seen.n == log.n_queries


def test_standard_errors_are_those_of_each_querys_mean(frontier, log):
    """Against a walk in plain Python through every query by both policies."""
    mixture = frontier.mixture(budget=float(np.median(np.asarray(frontier.cost))))
    part = log.take(slice(120))
    logprob, correct = np.asarray(part.logprob), np.asarray(part.correct)
    mean_cost = dict(zip(part.models, np.asarray(part.query_cost).mean(0), strict=True))
    wrong, charged = np.zeros(120), np.zeros(120)
    for policy, weight in zip(mixture.policies, mixture.weights, strict=True):
        for i in range(120):
            model = policy.first
            while True:
                charged[i] += weight * mean_cost[model]
                j = part.models.index(model)
                decision = policy.step(model, logprob=float(logprob[i, j]))
                if not hasattr(decision, "next_model"):
                    break
                model = decision.next_model
            wrong[i] += weight * (not correct[i, j])
    seen = rcjax.replay(mixture, part)
    for values, mean, se in ((wrong, seen.error, seen.error_se), (charged, seen.cost, seen.cost_se)):
        assert float(mean) == pytest.approx(values.mean(), rel=1e-9)
        assert float(se) == pytest.approx(values.std(ddof=1) / math.sqrt(120), rel=1e-9)


def test_models_in_contrary_orders_replay_all_the_same(log):
    names = ("llama3.2-1b", "llama3.1-8b")
    plain = make_policy().calibrations["small"]

    def ask(first, second):
        rules = {first: [Rule(0.6, "ask", second), Rule(1, "answer")], second: [Rule(1, "answer")]}
        return Policy((first, second), dict.fromkeys(names, plain), rules, {names[0]: 1e-6, names[1]: 1e-5})

    both = ask(*names), ask(*reversed(names))
    seen = rcjax.replay(Mixture(both, (0.5, 0.5)), log)
    alone = [float(rcjax.replay(policy, log).error) for policy in both]
    assert float(seen.error) == pytest.approx(np.mean(alone))


# The command line


@pytest.mark.thorough
def test_tune_and_evaluate(tmp_path):
    folder = write_folder(tmp_path)
    train, out = folder / "train.csv", folder / "mixture.json"
    found = json.loads(succeed("tune", train, "--budget", "60/M", "--mix", "--no-bands", "--out", out, "--json"))
    mixture = load_policy(out)
    assert isinstance(mixture, Mixture)
    assert found["policy"] == mixture.to_json()
    assert mixture.expected["cost"] == pytest.approx(60e-6)
    shown = succeed("tune", train, "--budget", "60/M", "--mix", "--no-bands")
    assert f"for {100 * mixture.weights[0]:.1f} % of the queries" in shown
    seen = json.loads(succeed("evaluate", out, folder / "test.csv", "--json"))
    assert seen["predicted"]["cost"] == pytest.approx(60e-6)
    assert 0 < seen["error"] < 1
    best = succeed("tune", train, "--budget", "1", "--really", "--mix", "--no-bands", "--out", out)
    assert "nothing to mix" in best
    assert isinstance(load_policy(out), Policy)
    assert "no cascade costs" in fail("tune", train, "--budget", "0.1/M", "--mix", "--no-bands")


@pytest.mark.parametrize("others", [[], ["--lam", "3"], ["--budget", "1", "--confidence", "95%"]])
def test_mix_needs_a_target_that_can_be_met(tmp_path, others):
    result = run("tune", tmp_path / "log.csv", "--mix", *others)
    assert result.exit_code == 2
    assert "--mix" in result.stderr
