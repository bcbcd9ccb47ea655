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


@pytest.mark.thorough
@in_turn("number", [9, 10, 60, 301, 750])
def test_exactly_so_many_are_drawn_and_each_once(whole, number):
    log = with_labels(whole, nowhere(whole))
    draw = draw_labels(log, number, seed=3)
    assert placed(draw, log).sum() == number == len(draw.query)
    counts = placed(draw, log).sum(0)
    assert counts.max() - counts.min() <= 1
    np.testing.assert_allclose(draw.chance, np.broadcast_to(counts / 250, draw.chance.shape))  # alike for all queries
    assert (np.diff(draw.query) >= 0).all()
    again = draw_labels(log, number, seed=3)
    np.testing.assert_array_equal(draw.query, again.query)
    if number < 750:
        assert (draw_labels(log, number, seed=4).query != draw.query).any()


def test_what_is_drawn_estimates_the_whole(whole):
    """Σ y/π over the answers drawn is right on average, model by model, and each is drawn as often as it should be."""
    judge = np.asarray(whole.correct, float)
    log = with_labels(whole, nowhere(whole), judged=judge)
    truth, estimates, often = np.asarray(whole.correct), [], nowhere(whole).astype(float)
    for seed in range(400):
        draw = draw_labels(log, 60, seed=seed)
        often += placed(draw, log)
        estimates.append(weighted(draw, truth))
    estimates = np.array(estimates)
    assert (np.abs(estimates.mean(0) - truth.sum(0)) < 4 * estimates.std(0) / 20).all()
    expected = 400 * draw.chance  # the same whatever the seed
    assert (np.abs(often - expected) < 5.5 * np.sqrt(expected) + 1).all()


@pytest.mark.thorough
def test_two_rounds_estimate_the_whole_together(whole):
    truth, estimates, alone = np.asarray(whole.correct), [], []
    for seed in range(400):
        first = with_labels(whole, nowhere(whole))
        draw = draw_labels(first, 45, seed=seed)
        second = with_labels(whole, placed(draw, whole), draw.chance, judged=np.asarray(whole.correct, float))
        more = draw_labels(second, 45, seed=1000 + seed)
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


def test_a_round_after_labels_that_were_drawn_unevenly_is_right_on_average(whole):
    truth, estimates = np.asarray(whole.correct), []
    probability = np.where(truth, 0.5, 0.1) * np.linspace(0.5, 1, 250)[:, None]
    for seed in range(400):
        labelled = np.random.default_rng(seed).random(truth.shape) < probability
        labelled[:2] = True  # never without any
        probability[:2] = 1
        log = with_labels(whole, labelled, np.where(labelled, probability, np.nan))
        draw = draw_labels(log, 45, seed=1000 + seed)
        known = labelled | placed(draw, whole)
        estimates.append(np.where(known, truth / draw.chance, 0).sum(0))
    estimates = np.array(estimates)
    assert (np.abs(estimates.mean(0) - truth.sum(0)) < 4 * estimates.std(0) / 20).all()


def test_models_have_as_many_labels_in_the_end(whole):
    """As far as there are answers: the first has but 20, and the second 60 labels already."""
    answered, labelled = np.ones((250, 3), bool), nowhere(whole)
    answered[20:, 0], labelled[:60, 1] = False, True
    log = dataclasses.replace(whole, answered=jax.device_put(answered))
    counts = np.bincount(draw_labels(with_labels(log, labelled), 130).model, minlength=3)
    assert counts.tolist() == [20, 25, 85]


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
    draw = draw_labels(with_labels(whole, labelled), 3)
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
        draw = draw_labels(log, 100)
    assert (answered & ~log.labelled)[draw.query, draw.model].all()
    np.testing.assert_array_equal(np.isfinite(draw.chance), answered)
    labels = (placed(draw, log) | log.labelled).sum(0)
    assert labels.max() - labels.min() <= 1
    np.testing.assert_allclose(draw.chance, np.where(answered, labels / answered.sum(0), np.nan), rtol=1e-6)
