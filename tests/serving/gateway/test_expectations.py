"""What a policy leads to expect, without numpy: against replays on the same queries, and damaged files."""

import base64
import json
import math
from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bare_python import run_bare
from hypothesis import given, settings, strategies as st
from misses import in_turn
from policy_samples import DELETE, places
from tiers import examples

import rcjax
from rcjax.logs import Log
from rcjax.logs.kept_sample import describe_reference, read_reference
from rcjax.policy import Calibration, Mixture, Policy, Rule
from rcjax.replaying.replay import replay, walk_log
from rcjax.serving.gateway.expectations import expect

MODELS = ("small", "médium", "large")
COST = {"small": 1.0, "médium": 3.0, "large": 10.0}
ANSWER = Rule(1.0, "answer")


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def make_reference(n=120, missing=0.2):
    """Queries with ties, probabilities of 0 and 1, costs of their own and gaps, as a policy carries them."""
    rng = np.random.default_rng(0)
    shape = n, len(MODELS)
    special = rng.choice([-math.inf, 0.0, -0.25], shape)
    logprob = np.where(rng.uniform(size=shape) < 0.3, special, np.log(rng.uniform(size=shape)))
    answered = (rng.uniform(size=shape) >= missing) | (np.arange(n) < 2)[:, None]
    cost = np.array(list(COST.values())) * rng.uniform(0.5, 1.5, shape)
    log = Log(
        models=MODELS,
        logprob=jnp.asarray(np.where(answered, logprob, np.nan)),
        correct=jnp.asarray((rng.uniform(size=shape) < 0.6) & answered),
        query_cost=jnp.asarray(np.where(answered, cost, 0.0)),
        answered=jnp.asarray(answered),
        cost=jnp.asarray(cost.mean(0)),
        queries=tuple(range(n)),
        task="choice",
        source="made up",
    )
    return describe_reference(log)


REFERENCE = make_reference()


def make_policy(seed, answers=1.0):
    """A policy of three models, four rules each, that may ask any later model, abstain, or leave a model out."""
    rng = np.random.default_rng(seed)

    def calibration():
        return Calibration(rng.choice(["choice", "generation", "none"]).item(), *rng.normal(size=2), -5.0, 6.0)

    def action(later):
        if later and rng.uniform() < 0.6:
            return "ask", str(rng.choice(later))
        return ("abstain" if rng.uniform() > answers else "answer"), None

    def table(later):
        ends = [*np.sort(rng.uniform(size=3)).tolist(), 1.0]
        return [Rule(end, *action(later)) for end in ends]

    return Policy(
        models=MODELS,
        calibrations={model: calibration() for model in MODELS},
        rules={model: table(MODELS[i + 1 :]) for i, model in enumerate(MODELS)},
        cost=COST,
        expected={"cost": 7.0},
        provenance={"reference": REFERENCE},
    )


def check_against_replay(policy):
    """Shares, refusals, money and who reaches whom, as `rcjax.replaying` has them."""
    expected, log = expect(policy), read_reference(REFERENCE, "choice")
    replayed, walked = replay(policy, log), walk_log(policy, log)
    assert expected.queries == replayed.n
    assert list(expected.answered) == list(replayed.models)
    np.testing.assert_allclose([*expected.answered.values()], replayed.share, rtol=0, atol=1e-12)
    np.testing.assert_allclose(expected.abstained, replayed.abstention, rtol=0, atol=1e-12)
    np.testing.assert_allclose(expected.cost, replayed.spent, rtol=1e-12)
    assert math.isclose(sum(expected.answered.values()) + expected.abstained, 1, abs_tol=1e-12)
    for model, reach in expected.reach.items():
        np.testing.assert_allclose(math.fsum(reach.weights), walked.asked[replayed.models.index(model)].sum())


@pytest.mark.thorough
@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), answers=st.sampled_from([1.0, 0.5]))
def test_a_policy_is_expected_to_do_what_it_does_when_replayed(seed, answers):
    check_against_replay(make_policy(seed, answers))


@pytest.mark.thorough
@settings(max_examples=examples(30), deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_a_mixture_weighs_its_policies(seeds, seed):
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(seeds)))
    check_against_replay(Mixture(tuple(make_policy(one, 0.8) for one in seeds), tuple(weights.tolist())))


@pytest.mark.thorough
def test_policies_of_a_tuned_frontier():
    train = rcjax.sample_log(400, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    frontier = rcjax.solve_frontier(rcjax.fit(train), lam=[100.0, 3000.0], cascades="full")
    kept = describe_reference(train)
    for lam in (100.0, 3000.0):
        policy = frontier.policy(lam=lam)
        policy = Policy.from_json(policy.to_json() | {"provenance": {"reference": kept}})
        expected, replayed = expect(policy), replay(policy, read_reference(kept, "generation"))
        np.testing.assert_allclose([*expected.answered.values()], replayed.share, rtol=0, atol=1e-12)
        np.testing.assert_allclose(expected.cost, replayed.spent, rtol=1e-12)


def test_confidences_are_those_of_the_queries_that_reach_a_model():
    expected = expect(make_policy(3))
    for model, reach in expected.reach.items():
        calibrate = make_policy(3).calibrations[model]
        assert list(reach.logprobs) == sorted(reach.logprobs)
        np.testing.assert_allclose(reach.confidences, [calibrate(logprob) for logprob in reach.logprobs], rtol=1e-15)
    log = read_reference(REFERENCE, "choice")
    assert list(expected.reach["small"].logprobs) == sorted(np.asarray(log.logprob)[np.asarray(log.complete), 0])


def test_policies_that_calibrate_otherwise_count_a_query_once():
    first = make_policy(1)
    other = Policy.from_json(first.to_json() | {"calibrations": make_policy(2).to_json()["calibrations"]})
    reach, (one, two) = (
        expect(Mixture((first, other), (0.25, 0.75))).reach["small"],
        (expect(policy).reach["small"] for policy in (first, other)),
    )
    assert reach.logprobs == one.logprobs
    np.testing.assert_allclose(reach.weights, np.ones(len(reach.logprobs)), rtol=1e-15)
    mean = 0.25 * np.array(one.confidences) + 0.75 * np.array(two.confidences)
    np.testing.assert_allclose(reach.confidences, mean, rtol=1e-12)


def test_a_policy_of_weight_0_reaches_nobody():
    data = make_policy(0).to_json()
    answering, asking = (
        Policy.from_json(data | {"rules": data["rules"] | {"small": [rule]}})
        for rule in (ANSWER, Rule(1.0, "ask", "large"))
    )
    expected = expect(Mixture((answering, asking), (1.0, 0.0)))
    assert expected.answered == {"small": 1.0, "médium": 0.0, "large": 0.0}
    assert expected.reach["large"].logprobs == ()
    assert len(expected.reach["small"].logprobs) == expected.queries


def test_it_takes_the_standard_library_alone(tmp_path):
    policy = make_policy(4)
    policy.save(tmp_path / "policy.json")
    program = """
        from rcjax.policy import Policy
        from rcjax.serving.gateway.expectations import expect
        print(expect(Policy.load(sys.argv[1])).cost)
    """
    assert float(run_bare(dedent(program), tmp_path / "policy.json")) == expect(policy).cost


# Policies without queries that could tell


def without(**provenance):
    return Policy.from_json(make_policy(0).to_json() | {"provenance": provenance})


def test_a_policy_without_queries_expects_the_cost_that_was_promised():
    expected = expect(without())
    assert (expected.queries, expected.answered, expected.abstained, expected.cost) == (0, None, None, 7.0)
    assert expected.reach == {}


def test_a_model_that_the_queries_do_not_know_leaves_the_promise():
    models = {name: column for name, column in REFERENCE["models"].items() if name != "large"}
    assert expect(without(reference=REFERENCE | {"models": models})).cost == 7.0


def test_queries_that_no_model_answered_leave_the_promise():
    nothing = base64.b64encode(np.full(120, np.nan, "<f4").tobytes()).decode()
    models = REFERENCE["models"] | {"large": REFERENCE["models"]["large"] | {"logprob": nothing}}
    data = make_policy(0).to_json() | {"provenance": {"reference": REFERENCE | {"models": models}}}
    skipping = data["rules"] | {"small": [{"up_to": 0.5, "action": "ask", "model": "large"}, ANSWER]}
    expected = expect(Policy.from_json(data | {"rules": skipping}))
    assert (expected.queries, expected.cost) == (0, 7.0)


# Damage

WRONG = [DELETE, None, True, 5, 0, -1, 2.5, 10**15, "", "AAAA", "é", "=", "AACAPw==", [], {}, {"small": 3}]


def damaged(path, value):
    data = json.loads(json.dumps({"reference": REFERENCE}))
    *parents, last = path
    spot = data
    for key in parents:
        spot = spot[key]
    if value is DELETE:
        del spot[last]
    else:
        spot[last] = value
    return data


def problem_of(read):
    """What a reader finds wrong, or None."""
    try:
        read()
    except ValueError as problem:
        return str(problem)
    return None


@in_turn("path", [path for path in places({"reference": REFERENCE}) if "names" not in path], ids=str)
def test_damage_is_told_as_strictly_as_elsewhere(path):
    for value in WRONG:
        policy = without(**damaged(path, value))
        reference = policy.provenance.get("reference")
        if reference is None:  # none at all is no damage
            continue
        problem = problem_of(lambda reference=reference: read_reference(reference, "choice", "the policy"))
        told = problem_of(lambda policy=policy: expect(policy))
        assert told == (problem and problem.replace("the policy: the queries that it", "the queries that the policy"))
        assert "\n" not in (told or "")


def test_infinite_costs_are_damage():
    costs = base64.b64encode(np.full(120, np.inf, "<f2").tobytes()).decode()
    data = damaged(("reference", "models", "small", "cost"), costs)
    with pytest.raises(ValueError, match=r"damaged: provenance\.reference\.models\['small'\]\.cost: must hold nothing"):
        expect(without(**data))
