"""Chains of more than two models, where confidences are a check's verdicts."""

import jax
import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.model.calibrated_models import fit_calibrated
from rcjax.tuning.candidate_scores import Blending, score_candidates
from rcjax.tuning.candidate_table import are_verdicts, score_chains
from rcjax.tuning.cross_validation import make_training_rows
from rcjax.tuning.replaying.replay import replay_queries

NAMES = ("small", "small@2", "middle", "middle@2", "large")
COSTS = np.array([1.0, 1.0, 4.0, 4.0, 20.0]) * 1e-3
SKILL = np.array([0.0, 0.0, 0.7, 0.7, 1.5])


def tasks(n=400, seed=0, errs=0.05):
    """A log of attempts whose tests err sometimes: attempts of one model fail on the same tasks."""
    rng = np.random.default_rng(seed)
    odds = SKILL - 1.5 * rng.standard_normal((n, 1))
    right = rng.random((n, 5)) < 1 / (1 + np.exp(-odds))
    verdict = np.where(rng.random((n, 5)) < errs, ~right, right)
    rows = {
        "query": np.repeat(np.arange(n), 5),
        "model": list(NAMES) * n,
        "confidence": verdict.ravel().astype(float),
        "correct": right.ravel().astype(int),
        "cost": (COSTS * rng.gamma(9.0, 1 / 9, (n, 5))).ravel(),
    }
    return pl.DataFrame(rows)


def tuned_error(log, fresh, budget):
    tuned = rcjax.tune(log, budget=budget, intervals=False)
    walked = replay_queries(tuned.policy, fresh)
    return tuned, float(walked.wrong.mean()), float(walked.spent.mean())


@pytest.mark.parametrize(("n", "signals"), [(60, None), (60, 0.5), (6_000, None)])
def test_chains_are_walked_as_the_replay_walks_them(n, signals):
    """Chains of a large log, too, are scored on all queries, as pairs are."""
    log = rcjax.read_log(tasks(n))
    logprob, correct, query_cost = (np.asarray(column) for column in (log.logprob, log.correct, log.query_cost))
    assert are_verdicts(logprob, np.asarray(log.answered))
    confidence = np.where(logprob == 0, 0.8, 0.2)
    signal_cost = None if signals is None else signals * query_cost
    chains = score_chains(confidence, correct.astype(float), log.complete, query_cost, signal_cost)
    policies = chains.policies()
    assert {*policies.members.sum(1).tolist()} <= {3, 4, 5}
    for at in range(0, len(chains.cost), 5):
        wrong, spent = [], []
        members, cuts = np.flatnonzero(policies.members[at]), chains.chain[at]
        for row in range(log.n_queries):
            asked = []
            for j in members:
                asked.append(j)
                if confidence[row, j] > cuts[j]:
                    break
            wrong.append(1 - correct[row, asked[-1]])
            is_last = asked[-1] == members[-1]  # nobody asks how sure it is
            spent.append(query_cost[row, asked].sum() - is_last * (signals or 0.0) * query_cost[row, asked[-1]])
        assert np.mean(wrong) == pytest.approx(chains.penalty[at], abs=1e-6)
        assert np.mean(spent) == pytest.approx(chains.cost[at], rel=1e-5)


def test_a_table_has_chains_and_pairs():
    log = rcjax.read_log(tasks(60))
    calibrators = fit_calibrated(log).calibrators
    training = make_training_rows(log, compare=False)
    table, none = score_candidates(calibrators, training, Blending())
    assert none is None
    assert set(table.policies().members.sum(1).tolist()) > {1, 2}


@pytest.mark.thorough
def test_longer_chains_are_chosen_and_keep_their_expected_error(monkeypatch):
    log, fresh = rcjax.read_log(tasks(400, 1)), rcjax.read_log(tasks(4000, 2))
    tuned, error, spent = tuned_error(log, fresh, 4e-3)
    assert max(len(rung.models) for rung in tuned.policy.adjacent_rungs) > 2
    assert spent == pytest.approx(4e-3, rel=0.12)
    assert error == pytest.approx(tuned.policy.expected["error"], abs=0.05)
    monkeypatch.setattr("rcjax.tuning.candidate_scores.are_verdicts", lambda *_: False)
    tuned, pairs, _ = tuned_error(log, fresh, 4e-3)
    assert max(len(rung.models) for rung in tuned.policy.adjacent_rungs) == 2
    assert error < 0.8 * pairs  # .151 against .248, where pairs take as much


@pytest.mark.thorough
def test_the_bootstrap_tunes_chains_again():
    log = rcjax.read_log(tasks(120, 3))
    tuned = rcjax.tune(log, budget=9e-3)
    bands = tuned.frontier.bands
    low, high = np.asarray(bands.error).T
    assert np.isfinite(low).all()
    assert (low <= high).all()


def test_without_verdicts_there_are_no_chains():
    frame = tasks(60)
    plain = rcjax.read_log(frame.with_columns(confidence=0.25 + pl.col("confidence") / 2))
    sure = rcjax.read_log(frame.with_columns(confidence=pl.lit(1.0)))
    for log in (plain, sure):
        assert not are_verdicts(np.asarray(log.logprob), np.asarray(log.answered))
    two = rcjax.read_log(frame.filter(pl.col("model").is_in(["small", "large"])))
    assert (
        score_chains(np.asarray(two.logprob), np.asarray(two.correct), two.complete, np.asarray(two.query_cost)) is None
    )


@pytest.mark.thorough
def test_answers_without_a_verdict_fail_the_check_in_any_precision():
    frame = tasks(100).with_columns(confidence=pl.when(pl.int_range(pl.len()) % 17 > 0).then("confidence"))
    with jax.enable_x64(True):
        with pytest.warns(rcjax.logs.NoConfidenceWarning):
            log = rcjax.read_log(frame)
        assert are_verdicts(np.asarray(log.logprob), np.asarray(log.answered))
        assert rcjax.tune(log, budget=9e-3, intervals=False).policy is not None
