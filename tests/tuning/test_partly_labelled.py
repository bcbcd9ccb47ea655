"""Tuning, intervals, promises and guarantees on logs few of whose answers have a label by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.judged_logs import MODELS, judged_log, partly

import rcjax
from rcjax.model.label_outcomes import corrected_log, take_hand_labelled
from rcjax.tuning.replaying.comparing import compare_policy

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
def test_nothing_changes_if_all_answers_are_labelled():
    whole = rcjax.sample_log(200, seed=0).select(MODELS)
    judged = partly(whole, np.ones(whole.correct.shape, bool), np.zeros((200, 3, 1)))
    plain, same = (rcjax.tuning.select_frontier(log).frontier for log in (whole, judged))
    assert np.array_equal(plain.error, same.error)
    assert np.array_equal(plain.thresholds, same.thresholds)
    assert np.array_equal(rcjax.replay(plain, whole).error, rcjax.replay(plain, judged).error)
    bands = [rcjax.tuning.bootstrap(plain, log, replicates=20) for log in (whole, judged)]
    assert np.array_equal(bands[0].error, bands[1].error)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fair", "lenient", "useless", "none"])
def test_expected_errors_are_those_of_fresh_queries(kind):
    """On average over logs: the judge's word would be off by several points."""
    fresh = rcjax.sample_log(4000, seed=77).select(MODELS)
    lam, gaps, word = [300.0, 1500.0], [], []
    for seed in range(6):
        log = judged_log(600, 150, kind, seed=seed)
        frontier = rcjax.tuning.select_frontier(log, lam=lam).frontier
        comes = np.asarray(rcjax.replay(frontier, fresh).error)
        gaps.append(np.asarray(frontier.error) - comes)
        said = np.nan_to_num(np.asarray(log.hand_labels.judged)[..., 0]) > 0.5
        believed = dataclasses.replace(log, correct=jnp.asarray(said), hand_labels=None)
        word.append(np.asarray(rcjax.replay(frontier, believed).error) - comes)
    assert np.abs(np.mean(gaps, 0)).max() < 0.035
    if kind == "useless":
        assert np.abs(np.mean(word, 0)).max() > 0.1


def test_a_policy_has_one_error_on_a_log_with_few_labels():
    """Replayed, compared, and checked: labels of models that are not asked help to estimate it, or they do nowhere."""
    tuned = rcjax.tune(rcjax.sample_log(300, seed=3).select(MODELS), match=0.03, today=MODELS[2], intervals=False)
    fresh = judged_log(300, 60, "none", seed=1)
    assert {name for rung in tuned.policy.adjacent_rungs for name in rung.models} == {*MODELS[1:]}
    beside, replayed = compare_policy(tuned.policy, fresh, MODELS[2]), rcjax.replay(tuned.policy, fresh)
    check = rcjax.check_policy(tuned.policy, fresh, retuning=False)
    assert (beside.labelled, compare_policy(tuned.policy, rcjax.sample_log(300, 1), MODELS[2]).labelled) == (60, None)
    assert [float(replayed.error), check.error.observed] == pytest.approx([beside.error] * 2)
    assert check.difference.observed == pytest.approx(beside.today.error_difference)
    assert 1 - np.asarray(corrected_log(fresh).correct)[:, 2].mean() == pytest.approx(beside.today.error)


def without_labels_of_first(log):
    """The log, none of whose labels is of the first model; the judges' verdicts stay."""
    labelled = log.labelled & (np.arange(len(log.models)) > 0)
    return partly(log, labelled, np.asarray(log.hand_labels.judged))


def test_a_model_without_a_label_has_no_calibration_error():
    """A split of a log with few labels of a model may leave it none: the others are tuned all the same."""
    tuned = rcjax.tune(without_labels_of_first(judged_log(192, 60)), error_cost=1e-3, intervals=False)
    first, *others = tuned.single_models
    assert first.calibration_error is None
    assert all(0 <= model.calibration_error < 0.5 for model in others)
    assert 0 < first.accuracy < 1
    assert tuned.policy is not None


def test_a_guarantee_with_judges_names_the_model_without_a_held_out_label():
    log, held_out = judged_log(192, 60), without_labels_of_first(judged_log(192, 60, seed=5))
    with pytest.raises(rcjax.LogError, match=rf"no held-out answer of {MODELS[0]} is labelled: label some"):
        rcjax.tune(log, held_out=held_out, max_error=0.6, confidence=0.9, judged=True, intervals=False)


def test_labelled_queries_are_a_log_of_their_own():
    log = judged_log(100, 30)
    alone = take_hand_labelled(log)
    assert alone.n_queries == 30
    assert alone.hand_labels is None
    assert take_hand_labelled(alone) is alone
    with pytest.raises(rcjax.LogError, match="no query has a label"):
        take_hand_labelled(partly(log, np.zeros((100, 3), bool), np.asarray(log.hand_labels.judged)))


@pytest.mark.thorough
def test_a_guarantee_counts_labels_by_hand_only():
    log, fresh = judged_log(400, 200, seed=0), judged_log(600, 250, seed=5)
    frontier = rcjax.solve_frontier(rcjax.fit(log))
    certificate = rcjax.certify(frontier, fresh, max_error=0.4)
    alone = rcjax.certify(frontier, take_hand_labelled(fresh), max_error=0.4)
    assert (certificate.n_queries, certificate.errors, certificate.position) == (250, alone.errors, alone.position)


@pytest.mark.thorough
def test_a_guarantee_with_judges_needs_a_log_that_knows_them():
    log, fresh = judged_log(400, 200, seed=0), judged_log(600, 250, seed=5)
    frontier = rcjax.solve_frontier(rcjax.fit(log))
    for known in (None, take_hand_labelled(log)):
        with pytest.raises(ValueError, match="needs tuned_on"):
            rcjax.certify(frontier, fresh, max_error=0.4, judged=True, tuned_on=known)
    certificate = rcjax.certify(frontier, fresh, max_error=0.4, judged=True, tuned_on=log)
    assert certificate.n_queries == 600
    assert certificate.error_bound <= 0.4


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fair", "lenient", "useless"])
def test_a_guarantee_with_judges_is_seldom_broken(kind):
    """At the true error itself, where a promise would be false: of 60 logs, 10 % may break it."""
    log = judged_log(400, 200, kind, seed=0)
    frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[800.0])
    true = float(rcjax.replay(frontier, rcjax.sample_log(20_000, seed=3).select(MODELS)).error[0])
    broken = 0
    for seed in range(60):
        fresh = judged_log(300, 100, kind, seed=100 + seed)
        try:
            rcjax.certify(frontier, fresh, max_error=true, judged=True, tuned_on=log, confidence=0.9)
            broken += 1
        except rcjax.InfeasibleError:
            pass
    assert broken <= 12  # 6 are expected at most; more than 12 have a probability of 1 %
