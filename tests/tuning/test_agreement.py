"""Policies by agreement: judged as a loop over the definition does, walked as judged, chosen where they pay."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.agreement_logs import make_log
from helpers.selection_references import centred
from hypothesis import given, settings, strategies as st
from scipy import special
from scipy.optimize import minimize_scalar

import rcjax
from rcjax._core.batching import join, list_pairs
from rcjax.model.fitting import fit
from rcjax.policy.comparison import describe_rungs
from rcjax.policy.spec import Target
from rcjax.solving.frontier.points import NEVER_ANSWER
from rcjax.tuning.candidate_scores import Blending, CalibratedRows, TrainingRows, score_agreement, score_candidates
from rcjax.tuning.cross_validation import estimate_wrong
from rcjax.tuning.replaying.walk import loss_terms, loss_terms_on_log

pytestmark = pytest.mark.usefixtures("float64")

K, N = 4, 16
COST = np.array([1.0, 2.0, 5.0, 20.0])
WORTH = 0.7
LABEL = 0.25
judged_by = jax.jit(score_agreement)


def judged(log, query_cost=COST, **how):
    """`score_agreement` of (confidence, conditional, correct, present, answer)."""
    *rows, answer = log
    optional = {name: how.pop(name, None) for name in ("signal_cost", "abstain_worth")}
    rows = CalibratedRows(*rows, np.broadcast_to(query_cost, rows[0].shape), answer, **optional)
    return judged_by(rows, Blending(**how))


def random_log(seed, missing=0.1, unknown=0.15):
    """(confidence, conditional, correct, present, answer): few values, so that many tie."""
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, 7, (N, K)) / 7
    present = (rng.random((N, K)) >= missing) | (np.arange(N) < 3)[:, None]
    correct = (rng.random((N, K)) < 0.6) & present
    answer = np.where(rng.random((N, K)) < unknown, -1, rng.integers(0, 2, (N, K))).astype(np.int32)
    answer[:2] = [[0] * K, range(K)]
    return confidence, rng.uniform(0.1, 0.9, (len(list_pairs(K)), N)), correct, present, answer


FIGURES = ("penalty", "cost", "abstention")


def query_costs_at_random(seed):
    """(N, K) what answers cost, of which some are ten times as long as others."""
    return COST * np.random.default_rng(seed).uniform(0.3, 3, (N, K))


def shift(plain, labels):
    """The δ that is likeliest under a normal prior, by SciPy."""

    def loss(delta):
        odds = [special.logit(p) + delta for p in plain]
        return delta**2 / 2 + sum(math.log1p(math.exp(-o if y else o)) for o, y in zip(odds, labels, strict=True))

    return minimize_scalar(loss, bounds=(-15, 15), method="bounded", options={"xatol": 1e-10}).x


def by_definition(log, query_cost, triple, threshold):
    """(error, cost, abstention) of one policy by agreement, by loops over the queries."""
    confidence, conditional, correct, present, answer = log
    cross = dict(zip(list_pairs(K), conditional, strict=True))
    i, j, third = triple
    rows = [q for q in range(N) if all(present[q, m] for m in triple)]
    known = {q: answer[q, i] >= 0 and answer[q, j] >= 0 for q in rows}
    equal = [q for q in rows if known[q] and answer[q, i] == answer[q, j]]
    differ = [q for q in rows if known[q] and answer[q, i] != answer[q, j]]
    second = {q: (confidence[q, j] + cross[i, j][q]) / 2 for q in rows}
    delta = shift([second[q] for q in equal], [correct[q, j] for q in equal])
    second |= {q: special.expit(special.logit(second[q]) + delta) for q in equal}
    later = {q: confidence[q, third] / 2 + (cross[i, third][q] + cross[j, third][q]) / 4 for q in rows}
    delta = shift([later[q] for q in differ], [correct[q, third] for q in differ])
    later |= {q: special.expit(special.logit(later[q]) + delta) for q in differ}
    answered = present[:, i]
    alone = dict(zip(np.flatnonzero(answered), centred(confidence[answered, i], correct[answered, i]), strict=True))
    ordered = sorted(confidence[q, j] for q in rows if known[q])
    share = len(differ)
    fallback = 0.0 if not share else 1.0 if share == len(ordered) else (ordered[share - 1] + ordered[share]) / 2
    right, bills = 0.0, []
    for q in rows:
        bills.append(query_cost[q, i])
        if confidence[q, i] > threshold:
            right += LABEL * correct[q, i] + (1 - LABEL) * alone[q]
            continue
        bills[-1] += query_cost[q, j]
        if q in equal or (not known[q] and confidence[q, j] > fallback):
            right += LABEL * correct[q, j] + (1 - LABEL) * second[q]
        else:
            bills[-1] += query_cost[q, third]
            right += LABEL * correct[q, third] + (1 - LABEL) * later[q]
    return 1 - right / len(rows), np.mean(bills), 0.0


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_candidates_are_those_of_the_definition(seed):
    log, query_cost = random_log(seed), query_costs_at_random(seed)
    confidence, _, _, present, _ = log
    trial = judged(log, query_cost=query_cost)
    columns = [getattr(trial, name) for name in ("first", "second", "third", "threshold", *FIGURES)]
    rows = [row for row in zip(*map(np.asarray, columns), strict=True) if np.isfinite(row[4])]
    for i, j, third, threshold, *figures in rows:
        expected = by_definition(log, query_cost, (int(i), int(j), int(third)), threshold)
        np.testing.assert_allclose(figures, expected, atol=1e-6)
    triples = {(int(i), int(j), int(third)) for i, j, third, *_ in rows}
    assert triples == {*itertools.combinations(range(K), 3)}
    for triple in triples:
        cuts = sorted(row[3] for row in rows if row[:3] == triple)
        counted = present[:, list(triple)].all(1)
        assert len(cuts) == len({*confidence[counted, triple[0]]})  # one above each value of the first model
        assert cuts[-1] == NEVER_ANSWER


@pytest.mark.parametrize("signals", [0.0, 0.4])
@pytest.mark.parametrize("abstaining", [False, True])
def test_a_candidate_costs_and_abstains_as_its_walk_does(abstaining, signals):
    """On complete queries, the shares of the estimate are those of the policy that it becomes."""
    confidence, conditional, correct, _, answer = random_log(5)
    everyone, query_cost = np.ones((N, K), bool), query_costs_at_random(5)
    how = {"abstain_worth": jnp.array(WORTH) if abstaining else None}
    signal_cost = signals * query_cost if signals else None
    trial = judged((confidence, conditional, correct, everyone, answer), query_cost, signal_cost=signal_cost, **how)
    trial = jax.tree.map(np.asarray, trial)
    places = np.flatnonzero(np.isfinite(trial.penalty))
    walked = loss_terms(confidence, correct, query_cost, trial.take(places).policies(), answer, signal_cost)
    np.testing.assert_allclose(np.asarray(walked.cost).mean(1), trial.cost[places], rtol=1e-12)
    np.testing.assert_allclose(np.asarray(walked.abstained).mean(1), trial.abstention[places], atol=1e-12)


# -- the best of all, and what is expected of it


@pytest.fixture(scope="module")
def log():
    with jax.enable_x64(True):
        return make_log(300, 0.0, seed=0)


@pytest.fixture(scope="module")
def model(log):
    with jax.enable_x64(True):
        return fit(log)


def tune_by_labels(calibrators, rows, cost, lam):
    """(L,) the best policy for each λ (L,), at the mean cost (k,) of each model."""
    rows = rows._replace(query_cost=np.broadcast_to(cost, rows.correct.shape))
    pairs, answers = score_candidates(calibrators, rows, Blending())
    return (pairs if answers is None else join([pairs, answers])).best(lam)


@pytest.mark.thorough
def test_what_is_expected_is_what_is_seen_on_many_queries(model, log):
    """Expected errors, told by 300 labels, against those counted on 20,000 queries."""
    lam = np.geomspace(10.0, 1e5, 12)
    fresh = make_log(20_000, 0.0, seed=1)
    rows = TrainingRows(log.logprob, log.correct, log.answered, log.answer)
    policies = tune_by_labels(model.calibrators, rows, log.cost, lam)
    expected = estimate_wrong(model.calibrators, rows, log, [policies])[0].mean(1)
    terms = loss_terms_on_log(model.calibrators, policies.policies(), fresh, fresh.correct, fresh.query_cost)
    seen = np.asarray(terms.wrong).mean(1)
    np.testing.assert_allclose(expected, seen, atol=0.05)
    assert np.abs(expected - seen).mean() < 0.025


@pytest.mark.thorough
def test_labels_left_out_of_what_may_be_learnt_change_nothing(model, log):
    rows = TrainingRows(log.logprob, log.correct, log.answered, log.answer)
    policies = tune_by_labels(model.calibrators, rows, log.cost, np.array([100.0, 3000.0]))
    half = np.asarray(log.answered) & (np.arange(300) < 150)[:, None]
    other = np.where(half, np.asarray(log.correct), ~np.asarray(log.correct))
    one, two = (
        estimate_wrong(model.calibrators, TrainingRows(log.logprob, labels, half), log, [policies])
        for labels in (np.asarray(log.correct), other)
    )
    np.testing.assert_allclose(one, two, atol=1e-9)


# -- the whole search


@pytest.mark.thorough
def test_agreement_is_chosen_where_it_pays_and_lowers_the_error(log):
    fresh = make_log(20_000, 0.0, seed=1)
    with_answers = rcjax.tuning.select_frontier(log)
    without = rcjax.tuning.select_frontier(dataclasses.replace(log, answer=None))
    assert with_answers.cross_validation.agreement_gains.is_admitted
    assert without.cross_validation.agreement_gains is None
    agreements = with_answers.frontier.policies.agreements
    assert np.asarray(agreements.compares).any(1).any()
    assert without.frontier.policies.agreements is None
    point = int(np.asarray(agreements.compares).any(1).argmax())
    assert describe_rungs(with_answers.frontier.policy_at(point)) == "small and medium, and large where they differ"
    budget = 2e-4
    errors = [float(rcjax.replay(one.frontier.policy(budget=budget), fresh).error) for one in (with_answers, without)]
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.thorough
def test_a_policy_is_tuned_again_with_answers_and_without(log):
    frontier = rcjax.tuning.select_frontier(log).frontier
    compares = np.asarray(frontier.policies.agreements.compares).any(1)
    policy = frontier.policy_at(int(compares.argmax()), Target("error_cost", 0.002))
    other = make_log(300, 0.0, seed=9)
    new = rcjax.retune(policy, other, intervals=False)
    assert new.policy.agreements
    plain = rcjax.retune(policy, dataclasses.replace(other, answer=None, compare=None), intervals=False)
    assert not plain.policy.agreements
    assert "the policy compares answers, and the log has none: tuned without" in plain.remarks
