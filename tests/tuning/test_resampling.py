"""Which queries are left out: folds of one size, as many complete queries in each, and samples of large logs."""

import numpy as np
import pytest
from helpers.judged_logs import judged_log
from helpers.selection_references import make_log

from rcjax.model.label_outcomes import deal_folds
from rcjax.tuning import cross_validation
from rcjax.tuning.cross_validation import sample_queries
from rcjax.tuning.diagnostics.diagnosis import without

pytestmark = pytest.mark.usefixtures("float64")

N, FOLDS = 120, 5


@pytest.mark.parametrize("share", [0.0, 0.1, 0.28, 0.7, 1.0])
@pytest.mark.parametrize("n", [10, 76, 201])
def test_folds_hold_as_many_queries_and_as_many_complete_ones(n, share):
    complete = np.random.default_rng(1).random(n) < share
    for seed in range(20):
        fold = deal_folds(complete, seed)
        for some in (fold, fold[complete], fold[~complete]):
            sizes = np.bincount(some, minlength=FOLDS)
            assert sizes.max() - sizes.min() <= 1


def test_a_part_of_a_log_lacks_the_answers_to_other_queries():
    log = make_log(N, 2, seed=1)
    rows = np.arange(N) % 3 == 0
    less = without(log, rows)
    assert less.n_queries == N
    assert not less.answered[rows].any()
    for name in ("logprob", "correct", "query_cost", "answered"):
        np.testing.assert_array_equal(getattr(less, name)[~rows], getattr(log, name)[~rows])
    np.testing.assert_allclose(less.cost, log.take(~rows).cost)


def test_a_model_without_an_answer_left_keeps_its_cost():
    answered = np.ones((N, 2), bool)
    answered[10:, 1] = False
    log = make_log(N, 2, seed=2, answered=answered)
    less = without(log, np.arange(N) < 10)
    assert not less.answered[:, 1].any()
    assert float(less.cost[1]) == float(log.cost[1])
    assert float(less.cost[0]) == pytest.approx(np.asarray(log.query_cost)[10:, 0].mean())


def test_a_large_log_is_compared_on_a_sample(monkeypatch):
    log = make_log(N, 2, seed=3)
    assert sample_queries(log, 0) is log
    monkeypatch.setattr(cross_validation, "MAX_QUERIES", 50)
    samples = [sample_queries(log, seed) for seed in (0, 0, 1)]
    for sample in samples:
        assert sample.n_queries == len(set(sample.queries)) == 50
        assert set(sample.queries) <= set(log.queries)
        assert list(sample.queries) == sorted(sample.queries)
    assert samples[0].queries == samples[1].queries != samples[2].queries


def test_a_sample_of_a_large_log_keeps_all_labels(monkeypatch):
    log = judged_log(400, 30, seed=3)
    monkeypatch.setattr(cross_validation, "MAX_QUERIES", 50)
    sample = sample_queries(log, 0)
    assert sample.n_queries == 50
    assert int(sample.labelled.any(1).sum()) == int(log.labelled.any(1).sum()) == 30
