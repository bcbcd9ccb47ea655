"""Queries that a policy carries beside those of a fresh log: both are there once, at today's costs, old ones fade."""

import dataclasses

import jax
import numpy as np
import pytest

import rcjax
from rcjax.logs import HandLabels
from rcjax.logs.kept_sample import carried_mask, describe_kept_sample, hash_names, pool_logs, read_kept_sample

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
_WEEK = 7 * 86_400.0


@pytest.fixture(scope="module")
def logs(float64):
    log = rcjax.sample_log(300, seed=0).select(MODELS)
    return log.take(slice(200)), log.take(slice(200, 300))


def carried(log):
    return read_kept_sample(describe_kept_sample(log), log.task)


def test_pooled_queries_occur_once_at_the_fresh_costs(logs):
    old, fresh = logs
    dear = dataclasses.replace(fresh, query_cost=fresh.query_cost * np.array([1.0, 2.0, 0.5])).take(slice(None))
    both = pool_logs(carried(old), dear)
    assert both.n_queries == 300
    assert carried_mask(both).sum() == 200
    np.testing.assert_allclose(both.cost, dear.cost, rtol=1e-6)
    assert hash_names(both.queries).tolist() == hash_names([*old.queries, *fresh.queries]).tolist()
    np.testing.assert_array_equal(np.asarray(both.correct)[200:], fresh.correct)
    again = pool_logs(carried(old), both)
    assert again.digest == both.digest


def test_a_query_of_the_same_name_and_other_confidences_is_another_query(logs):
    old, fresh = logs
    renamed = dataclasses.replace(fresh, queries=old.queries[:100])
    assert pool_logs(carried(old), renamed).n_queries == 300


def test_pooling_keeps_the_models_of_the_fresh_log(logs):
    old, fresh = logs
    both = pool_logs(carried(old.select(MODELS[:2])), fresh)
    assert both.models == MODELS
    assert np.asarray(both.answered).sum(0).tolist() == [300, 300, 100]
    fewer = pool_logs(carried(old), fresh.select(MODELS[1:]))
    assert (fewer.models, fewer.n_queries) == (MODELS[1:], 300)
    assert pool_logs(carried(old.select(MODELS[:1])), fresh.select(MODELS[1:])).n_queries == 100  # nothing in common


def test_a_model_that_was_free_has_the_fresh_mean_cost(logs):
    old, fresh = logs
    free = dataclasses.replace(old, query_cost=old.query_cost * np.array([0.0, 1.0, 1.0])).take(slice(None))
    np.testing.assert_allclose(pool_logs(carried(free), fresh).cost, fresh.cost, rtol=1e-3)
    np.testing.assert_allclose(pool_logs(carried(fresh), free).cost, free.cost, rtol=1e-3)


def test_fields_of_one_log_alone_are_pooled_with_unknown_values(logs):
    old, fresh = logs
    labelled = np.zeros((100, 3), bool)
    labelled[:40] = True
    hand = HandLabels(*jax.device_put([labelled, np.full((100, 3, 1), 0.5)]), judges=("judged",))
    partly = dataclasses.replace(fresh, hand_labels=hand, answer=jax.device_put(np.zeros((100, 3), np.int32)))
    both = pool_logs(carried(old), partly)
    assert both.labelled.sum() == 3 * 240
    assert np.isnan(np.asarray(both.hand_labels.judged)).sum() == 3 * 200
    assert (np.asarray(both.answer)[:200] == -1).all()
    back = pool_logs(carried(partly), old)  # where no answer of the log is known, none is
    assert (back.answer, back.labelled.sum()) == (None, 3 * 240)
    scored = dataclasses.replace(fresh, correct=jax.device_put(np.full((100, 3), 0.5)), scores=rcjax.policy.Scores())
    assert set(np.unique(pool_logs(carried(old), scored).correct)) == {0.0, 0.5, 1.0}
    assert pool_logs(carried(scored), old).error_kind.noun == "score lost"


def test_times_are_carried_as_weeks(logs):
    old, fresh = logs
    timed = dataclasses.replace(old, time=tuple(_WEEK * (2_900 + i % 5) + 7.0 for i in range(200)))
    assert sorted({*np.asarray(carried(timed).time) // _WEEK}) == [2_900, 2_901, 2_902, 2_903, 2_904]
    assert carried(old).time is None
    both = pool_logs(carried(old), dataclasses.replace(fresh, time=(_WEEK * 2_905,) * 100))
    assert np.isnan(both.time).sum() == 200
    assert np.isnan(carried(both).time).sum() == 200


def test_a_fresh_log_gets_half_of_the_places_and_is_soon_forgotten(logs):
    """A bad log of any size is half of what is carried; of twenty weeks of 50 all but the last few fade."""
    whole = rcjax.sample_log(1_700, seed=1).select(MODELS)
    names = np.array(whole.queries)
    kept = carried(whole.take(slice(400)))
    large = pool_logs(kept, whole.take(slice(400, 1_700)))
    assert carried_mask(large).sum() == 400
    first = {*hash_names(names[:400].tolist()).tolist()}
    assert len(first & {*hash_names(carried(large).queries).tolist()}) == 200
    for week in range(20):
        kept = carried(pool_logs(kept, whole.take(slice(400 + 50 * week, 450 + 50 * week))))
    weeks = {h: week for week in range(20) for h in hash_names(names[400 + 50 * week : 450 + 50 * week]).tolist()}
    counts = np.bincount([weeks[h] for h in hash_names(kept.queries).tolist() if h in weeks], minlength=20)
    assert counts[-1] == 50
    assert counts[-8:].sum() > 2 * counts[:8].sum()
    assert 0.3 < counts[:10].sum() / (50 * sum(0.875**age for age in range(10, 20))) < 1.7  # as chance drops them
