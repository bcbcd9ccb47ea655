"""Queries walking through policies, against a plain loop over `policy.step`."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from helpers.policy_samples import make_ladder
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.logs import Log, LogError
from rcjax.policy import Abstain, Agreement, Answer, Calibration, Policy, Rule
from rcjax.solving.frontier.points import Agreements
from rcjax.tuning.replaying.replay import replay_queries
from rcjax.tuning.replaying.walk import policy_arrays, walk

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("a", "b", "c", "d")
K, N = len(NAMES), 30
LEVELS = np.linspace(0.0, 1.0, 24)
PLAIN = Calibration("none", intercept=0.2, slope=1.3, smallest=-20.0, largest=0.0)
walked = jax.jit(walk)


def random_policy(rng, intervals=2):
    """Any rules, whose bounds are confidences of the log, and any agreements."""
    rules, agreements = {}, {}
    for j, name in enumerate(NAMES):
        later = NAMES[j + 1 :]
        acts = [rng.choice(["answer", "abstain", *(["ask"] * 3 if later else [])]) for _ in range(intervals)]
        ends = [*sorted(PLAIN(math.log(level)) for level in rng.choice(LEVELS[1:], intervals - 1, replace=False)), 1.0]
        targets = [str(rng.choice(later)) if act == "ask" else None for act in acts]
        rules[name] = [Rule(float(end), str(act), to) for end, act, to in zip(ends, acts, targets, strict=True)]
        if j and later and rng.random() < 0.6:
            agreements[name] = Agreement(str(rng.choice(NAMES[:j])), str(rng.choice(later)), "key")
    cost = {name: float(j + 1) for j, name in enumerate(NAMES)}
    return Policy(NAMES, dict.fromkeys(NAMES, PLAIN), rules, cost, agreements=agreements)


def random_log(rng, missing=0.2):
    logprob = np.where(rng.random((N, K)) < 0.5, np.log(rng.choice(LEVELS[1:], (N, K))), -rng.exponential(1, (N, K)))
    answer = np.where(rng.random((N, K)) < missing, -1, rng.integers(0, 2, (N, K))).astype(np.int32)
    answer[0] = 0
    matrices = {"logprob": logprob, "correct": rng.random((N, K)) < 0.6, "query_cost": rng.uniform(1, 9, (N, K))}
    cost = matrices["query_cost"].mean(0)
    facts = {"models": NAMES, "queries": tuple(range(N)), "task": "generation", "source": "made"}
    return Log(**matrices, answered=np.ones((N, K), bool), cost=cost, answer=answer, **facts)


def by_steps(policy, log, q):
    """(who answers or None, who is asked) of one query, as a service would do."""
    asked, said, name = [], {}, policy.first_model
    while True:
        j = NAMES.index(name)
        asked.append(j)
        code = int(log.answer[q, j])
        own = None if code < 0 else str(code)
        decision = policy.step(name, logprob=float(log.logprob[q, j]), answer=own, answers=said)
        if isinstance(decision, Answer):
            return j, asked
        if isinstance(decision, Abstain):
            return None, asked
        said[name], name = own, decision.next_model


def comparing(policy):
    """The same, as one that may compare answers."""
    none = Agreements.none(np.shape(policy.members))
    return policy if policy.agreements is not None else dataclasses.replace(policy, agreements=none)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 20]))
def test_a_walk_is_a_loop_over_the_steps(seed, intervals):
    """Twenty bounds are searched by halves, fewer are all compared with."""
    rng = np.random.default_rng(seed)
    policy, log = random_policy(rng, intervals), random_log(rng)
    packed = policy_arrays(policy.models, [policy], np.float64)[0].take(0)
    confidence = np.vectorize(PLAIN)(log.logprob.T)
    answers, asked = (np.asarray(part) for part in walked(confidence, comparing(packed), log.answer.T))
    for q in range(N):
        who, path = by_steps(policy, log, q)
        assert np.flatnonzero(answers[:, q]).tolist() == ([] if who is None else [who])
        assert np.flatnonzero(asked[:, q]).tolist() == path


def test_without_answers_confidences_decide():
    rng = np.random.default_rng(1)
    policy, log = random_policy(rng), random_log(rng)
    packed = policy_arrays(policy.models, [policy], np.float64)[0].take(0)
    confidence = np.vectorize(PLAIN)(log.logprob.T)
    plain = walked(confidence, dataclasses.replace(packed, agreements=None))
    nothing = np.full((K, N), -1, np.int32)
    for other in (walked(confidence, packed), walked(confidence, comparing(packed), nothing)):
        for one, two in zip(plain, other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_replay_without_answers_is_refused():
    rng = np.random.default_rng(3)
    policy, log = random_policy(rng), random_log(rng)
    assert policy.agreements
    mute = dataclasses.replace(log, answer=None)
    for subject in (policy, make_ladder((policy,), 0.0)):
        for function in (rcjax.replay, replay_queries):
            with pytest.raises(LogError, match="the policy compares models' answers, and the log has none: add a"):
                function(subject, mute)


def test_models_asked_if_answers_differ_can_be_reached():
    agreements = {"b": Agreement("a", "d")}
    rules = {"a": [Rule(1, "ask", "b")], "b": [Rule(1, "answer")], "c": [Rule(1, "answer")], "d": [Rule(1, "answer")]}
    policy = Policy(NAMES, dict.fromkeys(NAMES, PLAIN), rules, dict.fromkeys(NAMES, 1.0), agreements=agreements)
    assert policy_arrays(policy.models, [policy], np.float64)[0].members[0].tolist() == [True, True, False, True]
