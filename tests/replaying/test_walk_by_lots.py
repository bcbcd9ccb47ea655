"""Policies with rules for a share of the queries on logged queries: expectations over the lots."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from policy_samples import make_ladder
from tiers import examples

from rcjax.frontier.policies import entered
from rcjax.logs import Log
from rcjax.policy import Abstain, Agreement, Answer, Calibration, Defer, Policy, Rule
from rcjax.replaying.packing import pack_policy
from rcjax.replaying.replay import replay, walk_log
from rcjax.replaying.walk import walk

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("a", "b", "c", "d")
K, N = len(NAMES), 30
LEVELS = np.linspace(0.0, 1.0, 6)
PLAIN = Calibration("none", intercept=0.2, slope=1.3, smallest=-20.0, largest=0.0)
walked = jax.jit(walk)


def random_policy(rng, compares):
    """Rules of three intervals, most for a share; where answers are compared, each model asks one other."""
    rules, agreements = {}, {}
    for j, name in enumerate(NAMES):
        later = NAMES[j + 1 :]
        one = str(rng.choice(later)) if later else None
        acts = [str(rng.choice(["answer", "abstain", *(["ask"] * 3 if later else [])])) for _ in range(3)]
        targets = [(one if compares else str(rng.choice(later))) if act == "ask" else None for act in acts]
        ends = [*np.sort(rng.choice(LEVELS[1:-1], 2, replace=False)).tolist(), 1.0]
        shares = [float(rng.uniform(0.1, 0.9)) if rng.random() < 0.7 else None for _ in range(2)] + [None]
        rules[name] = [Rule(*own) for own in zip(ends, acts, targets, shares, strict=True)]
        if compares and j and later and rng.random() < 0.6:
            agreements[name] = Agreement(str(rng.choice(NAMES[:j])), str(rng.choice(later)), "key")
    cost = {name: float(j + 1) for j, name in enumerate(NAMES)}
    return Policy(NAMES, dict.fromkeys(NAMES, PLAIN), rules, cost, agreements=agreements)


def with_many_intervals(policy):
    """The same, each model with intervals that are cut in pieces which do alike; only the last of a share has it."""
    rules = {}
    for name, table in policy.rules.items():
        pieces, start = [], 0.0
        for rule in table:
            cuts = np.linspace(start, rule.up_to, 8)[1:-1] if rule.share is None else []
            pieces += [dataclasses.replace(rule, up_to=float(cut)) for cut in cuts]
            pieces.append(rule)
            start = rule.up_to
        rules[name] = pieces
    return dataclasses.replace(policy, rules=rules)


def random_log(rng, seconds=False):
    logprob = np.where(rng.random((N, K)) < 0.5, np.log(rng.choice(LEVELS[1:], (N, K))), -rng.exponential(1, (N, K)))
    answer = np.where(rng.random((N, K)) < 0.2, -1, rng.integers(0, 2, (N, K))).astype(np.int32)
    answer[0] = 0
    matrices = {"logprob": logprob, "correct": rng.random((N, K)) < 0.6, "query_cost": rng.uniform(1, 9, (N, K))}
    cost = matrices["query_cost"].mean(0)
    facts = {"models": NAMES, "queries": tuple(range(N)), "task": "generation", "source": "made"}
    facts |= {"seconds": rng.exponential(1.0, (N, K))} if seconds else {}
    return Log(**matrices, answered=np.ones((N, K), bool), cost=cost, answer=answer, **facts)


def by_steps(policy, log, q, query):
    """(answers (K,), asked (K,)) of a row of a log, as a service does for the query of an id."""
    answers, asked, said, name = np.zeros(K), np.zeros(K), {}, policy.first
    while True:
        j = NAMES.index(name)
        asked[j] = 1
        own = None if log.answer[q, j] < 0 else str(log.answer[q, j])
        decision = policy.step(name, logprob=float(log.logprob[q, j]), answer=own, answers=said, query=query)
        said[name] = own
        if not isinstance(decision, Defer):
            answers[j] = isinstance(decision, Answer)
            assert isinstance(decision, Answer | Abstain)
            return answers, asked
        name = decision.next_model


def unsplit(policies):
    """(policies without shares, their weights) that a policy, L = 1, is a mixture of: 2^m where it splits m times."""
    if policies.shares is None:
        return policies, np.ones(1)
    shares = np.asarray(policies.shares[0], float)
    cuts = np.argwhere(entered(policies.bounds[0], shares) & (shares < 1) & np.asarray(policies.members[0])[:, None])
    weight, actions = [], []
    for taken in itertools.product([True, False], repeat=len(cuts)):
        table, odds = np.array(policies.actions[0]), 1.0
        for (j, r), takes in reversed(list(zip(cuts, taken, strict=True))):  # the next one's is settled first
            odds *= shares[j, r] if takes else 1 - shares[j, r]
            table[j, r] = table[j, r] if takes else table[j, r + 1]
        weight.append(odds)
        actions.append(table)
    parts = policies.take(np.zeros(len(weight), int))
    return dataclasses.replace(parts, actions=np.stack(actions), thresholds=None, shares=None), np.array(weight)


def both(policy, log, dtype=float):
    """(what the walk tells of a policy, the weighted mean over the policies without shares that it is a mixture of)."""
    packed = pack_policy(policy, dtype)
    confidence = np.array([[PLAIN(float(x)) for x in column] for column in np.asarray(log.logprob).T]).astype(dtype)
    codes = np.asarray(log.answer).T if policy.agreements else None
    parts, weights = unsplit(packed.policies)
    assert weights.sum() == pytest.approx(1)
    where = walked(confidence, packed.policies.take(0), codes)
    apart = [walked(confidence, parts.take(row), codes) for row in range(len(weights))]
    means = (
        sum(weight * np.asarray(getattr(one, name), float) for weight, one in zip(weights, apart, strict=True))
        for name in ("answers", "asked", "refused")
    )
    return where, list(means)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_walk_is_the_weighted_mean_of_policies_without_shares(seed, compares):
    rng = np.random.default_rng(seed)
    policy, log = random_policy(rng, compares), random_log(rng)
    where, (answers, asked, refused) = both(policy, log)
    for own, expected in ((where.answers, answers), (where.asked, asked), (where.refused, refused)):
        np.testing.assert_allclose(own, expected, atol=1e-12)
    wrong = np.asarray(where.wrong(np.asarray(log.correct).T), float)
    np.testing.assert_allclose(wrong, (answers * ~np.asarray(log.correct).T).sum(0), atol=1e-12)
    likely = np.asarray(where.wrong(rng.uniform(size=(K, N)) * 0 + 0.25), float)
    np.testing.assert_allclose(likely, 0.75 * answers.sum(0), atol=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_a_walk_is_the_mean_over_lots_of_steps(seed):
    """Seeds 0 and 1: without and with answers compared."""
    rng = np.random.default_rng(seed)
    policy, log, times = random_policy(rng, bool(seed)), random_log(rng), 1500
    where, _ = both(policy, log)
    for q in range(6):
        rows = np.array([by_steps(policy, log, q, f"{q}-{i}") for i in range(times)]).mean(0)
        np.testing.assert_allclose(rows[0], np.asarray(where.answers)[:, q], atol=5 * 0.5 / times**0.5)
        np.testing.assert_allclose(rows[1], np.asarray(where.asked)[:, q], atol=5 * 0.5 / times**0.5)


def test_in_single_precision():
    rng = np.random.default_rng(5)
    policy, log = random_policy(rng, False), random_log(rng)
    with jax.enable_x64(False):
        where, (answers, asked, refused) = both(policy, log, np.float32)
    assert where.answers.dtype == np.float32
    for own, expected in ((where.answers, answers), (where.asked, asked), (where.refused, refused)):
        np.testing.assert_allclose(own, expected, atol=1e-6)
    assert (np.asarray(where.refused)[refused == 0] == 0).all()


def test_intervals_that_are_searched_by_halves():
    policy = random_policy(np.random.default_rng(5), False)
    log = random_log(np.random.default_rng(8))
    many = with_many_intervals(policy)
    assert max(map(len, many.rules.values())) > 16
    for one, other in zip(both(many, log)[0], both(policy, log)[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def cascade(share=None, above=0.3, up_to=0.55):
    """Two models: the first asks up to a threshold, of those above another one a share."""
    split = [Rule(above, "ask", "b"), Rule(up_to, "ask", "b", share=share)] if share else [Rule(up_to, "ask", "b")]
    rules = {"a": [*split, Rule(1, "answer")], "b": [Rule(1, "answer")]}
    return Policy(("a", "b"), {"a": PLAIN, "b": PLAIN}, rules, {"a": 1.0, "b": 2.0})


@pytest.mark.thorough
def test_a_replay_is_that_of_the_mixture_of_the_two_thresholds():
    log = random_log(np.random.default_rng(3), seconds=True)
    own, pair = cascade(0.25), make_ladder((cascade(), cascade(up_to=0.3)), 0.75)
    one, two = replay(own, log), replay(pair, log)
    for name in ("error", "cost", "error_se", "cost_se", "share", "spent", "spent_se", "abstention"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-12)
    np.testing.assert_allclose([one.seconds.mean, one.seconds.p95], [two.seconds.mean, two.seconds.p95], rtol=1e-12)
    np.testing.assert_allclose(walk_log(own, log).wrong, walk_log(pair, log).wrong, atol=1e-12)
    assert abs(float(one.error - replay(cascade(), log).error)) > 0.01
    parts = make_ladder((own, cascade()), 0.5)
    assert float(replay(parts, log).cost) == pytest.approx(float(one.cost + replay(cascade(), log).cost) / 2)
