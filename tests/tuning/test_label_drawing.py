"""Answers drawn to be labelled: exactly so many, with probabilities that make estimates right, in rounds too."""

import dataclasses
import warnings

import jax
import numpy as np
import pytest
from misses import in_turn

import rcjax
from rcjax.logs.errors import LogError
from rcjax.logs.hand_labels import HandLabels
from rcjax.model.label_outcomes import expected_right
from rcjax.policy.targets import Target
from rcjax.tuning.label_drawing import draw_labels

MODELS = ["llama3.2-1b", "llama3.1-8b", "llama3.1-405b"]


@pytest.fixture(scope="module")
def whole():
    """A log with all labels."""
    return rcjax.sample_log(250, seed=0).select(MODELS)


def with_labels(log, labelled, probability=None, judged=None):
    """The log with labels of some answers only, and perhaps a judge."""
    shape = log.logprob.shape
    nothing = np.full(shape, np.nan)
    verdicts = np.zeros((*shape, 0)) if judged is None else judged[..., None]
    parts = jax.device_put([labelled, nothing if probability is None else probability, verdicts])
    hand = HandLabels(*parts, judges=() if judged is None else ("judged",))
    return dataclasses.replace(log, correct=jax.device_put(np.asarray(log.correct) & labelled), hand=hand)


def nowhere(log):
    return np.zeros(log.logprob.shape, bool)


def placed(draw, log):
    """(n, k) bool: who was drawn."""
    mask = nowhere(log)
    mask[draw.query, draw.model] = True
    return mask


def weighted(draw, truth):
    """(k,) Σ y/π of each model over what was drawn."""
    return np.bincount(draw.model, truth[draw.query, draw.model] / draw.chance[draw.query, draw.model], len(MODELS))


@in_turn("number", [9, 10, 60, 300, 750])
@in_turn("target", [None, Target("budget", 1e-4), Target("max_error", 0.3), Target("lam", 100.0)])
def test_exactly_so_many_are_drawn_and_each_once(whole, number, target):
    log = with_labels(whole, nowhere(whole))
    draw = draw_labels(log, number, target=target, seed=3)
    assert placed(draw, log).sum() == number == len(draw.query)
    assert placed(draw, log).sum(0).min() >= 3
    assert (draw.chance > 0).all()
    assert (draw.chance <= 1).all()
    assert draw.chance.sum() == pytest.approx(number)
    assert (np.diff(draw.query) >= 0).all()
    again = draw_labels(log, number, target=target, seed=3)
    np.testing.assert_array_equal(draw.query, again.query)
    if number < 300:
        assert (draw_labels(log, number, target=target, seed=4).query != draw.query).any()


def test_what_is_drawn_estimates_the_whole(whole):
    """Σ y/π over the answers drawn is right on average, model by model, and each is drawn as often as it should be."""
    judge = np.asarray(whole.correct, float)
    log = with_labels(whole, nowhere(whole), judged=judge)
    truth, estimates, often = np.asarray(whole.correct), [], nowhere(whole).astype(float)
    for seed in range(400):
        draw = draw_labels(log, 60, target=Target("budget", 1e-4), seed=seed)
        often += placed(draw, log)
        estimates.append(weighted(draw, truth))
    estimates = np.array(estimates)
    assert (np.abs(estimates.mean(0) - truth.sum(0)) < 4 * estimates.std(0) / 20).all()
    expected = 400 * draw.chance  # the same whatever the seed
    assert (np.abs(often - expected) < 5.5 * np.sqrt(expected) + 1).all()


def test_two_rounds_estimate_the_whole_together(whole):
    truth, estimates, alone = np.asarray(whole.correct), [], []
    for seed in range(400):
        first = with_labels(whole, nowhere(whole))
        draw = draw_labels(first, 45, target=Target("budget", 1e-4), seed=seed)
        second = with_labels(whole, placed(draw, whole), draw.chance, judged=np.asarray(whole.correct, float))
        more = draw_labels(second, 45, target=Target("budget", 1e-4), seed=1000 + seed)
        assert not (placed(more, whole) & second.labelled).any()
        assert (more.chance <= 1).all()
        assert (more.chance > 0).all()
        known = second.labelled | placed(more, whole)
        assert known.sum() == 90
        estimates.append(np.where(known, truth / more.chance, 0).sum(0))
        alone.append(weighted(draw, truth))
    estimates, alone = np.array(estimates), np.array(alone)
    assert (np.abs(estimates.mean(0) - truth.sum(0)) < 4 * estimates.std(0) / 20).all()
    assert estimates.std(0).sum() < 0.9 * alone.std(0).sum()  # two rounds tell more than one


@pytest.fixture(scope="module")
def partly():
    """A log of two thousand queries, the first hundred of which are labelled."""
    log = rcjax.sample_log(2_000, seed=1).select(MODELS)
    labelled = nowhere(log)
    labelled[:100] = True
    return with_labels(log, labelled)


def test_labels_go_where_policies_near_the_target_are_open(partly):
    """Where errors are dear the smallest model has few labels, where they are cheap the largest."""
    dear, cheap = (
        np.bincount(draw_labels(partly, 300, target=Target("error_cost", money)).model, minlength=3)
        for money in (0.01, 0.00005)
    )
    assert dear[0] < 0.5 * cheap[0]
    assert cheap[2] < 0.5 * dear[2]


def test_labels_narrow_the_error_of_a_policy_near_the_target(partly):
    """Its variance by these probabilities is under half of that by labels drawn evenly."""
    right, free = expected_right(partly), ~partly.labelled
    target = Target("error_cost", 0.002)
    chance = draw_labels(partly, 300, target=target).chance
    confident = np.asarray(partly.logprob)[:, 1] > np.quantile(partly.logprob[:, 1], 0.5)
    gives = np.stack([nowhere(partly)[:, 0], confident, ~confident], 1) & free
    doubt = right * (1 - right) * gives
    assert (doubt / chance)[free].sum() < 0.5 * (doubt / (300 / free.sum()))[free].sum()


def test_what_cannot_be_drawn_is_said(whole):
    bare = with_labels(whole, nowhere(whole))
    with pytest.raises(LogError, match="only 750 answers without a label: draw no more than that"):
        draw_labels(bare, 751)
    with pytest.raises(LogError, match="8 labels for 3 models, which need 3 each at least: draw 9 or more"):
        draw_labels(bare, 8)
    with pytest.raises(LogError, match="every answer has a label already"):
        draw_labels(whole, 10)


def test_a_model_without_labels_gets_some_beside_others_that_have_them(whole):
    labelled = nowhere(whole)
    labelled[:100, :2] = True
    draw = draw_labels(with_labels(whole, labelled), 3, target=Target("lam", 1e9))
    assert draw.model.tolist() == [2, 2, 2]
    np.testing.assert_allclose(draw.chance[labelled], 100 / 250)  # a round that took none of them changes nothing


def test_a_log_with_holes_and_few_labels(whole):
    answered = np.asarray(whole.answered).copy()
    answered[::3, 0] = False
    logprob = np.where(answered, whole.logprob, np.nan)
    log = dataclasses.replace(whole, answered=jax.device_put(answered), logprob=jax.device_put(logprob))
    rng = np.random.default_rng(0)
    log = with_labels(log, (rng.random(answered.shape) < 0.3) & answered)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw = draw_labels(log, 100, target=Target("max_error", 0.3))
    assert (answered & ~log.labelled)[draw.query, draw.model].all()
    np.testing.assert_array_equal(np.isfinite(draw.chance), answered)
    assert (draw.chance[log.labelled] > log.labelled.sum(0).min() / 250).all()


# -- several samples


def of_votes(whole):
    """A log in which the second model is the vote of three answers of the first: in 150 of 250 queries the first."""
    log = dataclasses.replace(whole, models=(MODELS[0], f"{MODELS[0]} ×3", MODELS[2]))
    samples = np.full(log.logprob.shape, "0")
    samples[150:, 1] = "2"
    right = np.asarray(log.correct).copy()
    right[:150, 1] = right[:150, 0]
    labelled = with_labels(dataclasses.replace(log, correct=jax.device_put(right)), nowhere(log))
    return right, dataclasses.replace(labelled, hand=dataclasses.replace(labelled.hand, samples=samples))


def test_an_answer_that_two_variants_give_is_drawn_once_and_its_label_counts_for_both(whole):
    truth, log = of_votes(whole)
    shared = np.arange(250) < 150
    counts = []
    for seed in range(200):
        draw = draw_labels(log, 90, seed=seed)
        drawn = placed(draw, log)
        assert drawn.sum() == len(draw.query) == 90
        assert not drawn[shared, 1].any()  # drawn as the answer of the first
        np.testing.assert_array_equal(draw.chance[shared, 0], draw.chance[shared, 1])
        drawn[shared, 1] = drawn[shared, 0]
        counts.append(np.where(drawn, truth / draw.chance, 0).sum(0))
    error = np.std(counts, axis=0) / np.sqrt(len(counts))
    np.testing.assert_array_less(np.abs(np.mean(counts, axis=0) - truth.sum(0)), 4 * error)
    assert (error < 0.1 * truth.sum(0)).all()


def test_a_second_round_keeps_what_is_labelled_of_samples(whole):
    truth, log = of_votes(whole)
    draw = draw_labels(log, 90, seed=1)
    labelled = placed(draw, log)
    labelled[:150, 1] = labelled[:150, 0]
    hand = dataclasses.replace(log.hand, labelled=jax.device_put(labelled), probability=jax.device_put(draw.chance))
    second = dataclasses.replace(log, correct=jax.device_put(truth & labelled), hand=hand)
    more = draw_labels(second, 60, seed=2)
    assert not labelled[more.query, more.model].any()
    np.testing.assert_array_equal(more.chance[:150, 0], more.chance[:150, 1])
    assert ((more.chance > 0) & (more.chance <= 1)).all()
