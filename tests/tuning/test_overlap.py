"""Queries that were tuned on are known again by their names and rows; what agrees by accident is let pass."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

import rcjax
from rcjax.logs import Log, LogError, read_log
from rcjax.tuning.certify import overlap

pytestmark = pytest.mark.usefixtures("float64")
LAM = 1000.0
CELLS = ("logprob", "correct", "query_cost", "answered")
SPLITS = [f"{part}_{family}" for part in ("mmlu", "triviaqa") for family in ("llama", "qwen_oai")]


def read(folder, name) -> Log:
    task = "choice" if name.startswith("mmlu") else "generation"
    return read_log(folder / f"{name}.csv", prices=folder / "prices.toml", task=task)


@pytest.fixture(scope="module")
def splits(shared_data):
    """The training log of TriviaQA, and its test log."""
    return tuple(read(shared_data, f"triviaqa_llama_{part}") for part in ("train", "test"))


@pytest.fixture(scope="module")
def frontier(splits):
    return rcjax.solve_frontier(rcjax.fit(splits[0]), lam=[10.0, LAM, 10_000.0])


@pytest.fixture(scope="module")
def policy(frontier):
    return frontier.policy(lam=LAM)


def with_copies(log: Log, other: Log, size: int) -> Log:
    """The log with its first queries replaced by those of another."""
    cells = {name: np.concatenate([getattr(other, name)[:size], getattr(log, name)[size:]]) for name in CELLS}
    changed = dataclasses.replace(log, **cells, queries=other.queries[:size] + log.queries[size:])
    return changed.take(slice(None))  # with its mean costs


# -- both logs at hand


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPLITS)
def test_splits_of_a_benchmark_share_nothing_whatever_models_are_compared(shared_data, name):
    train, test = (read(shared_data, f"{name}_{part}") for part in ("train", "test"))
    chosen = [c for size in (1, 2, len(train.models)) for c in itertools.combinations(train.models, size)]
    for models in chosen:
        assert not overlap(test.select(models), train.select(models)), models
        assert not overlap(train.select(models), test.select(models)), models


def test_a_part_of_the_log_is_known_whatever_its_order_and_labels(splits):
    train = splits[0]
    part = train.take(np.random.default_rng(0).permutation(300)[:199]).select(train.models[::-1])
    assert overlap(part, train)[:3] == (199, 199, True)  # every one of them was tuned on
    assert overlap(dataclasses.replace(part, correct=~part.correct), train).queries == 199
    assert overlap(part.take(np.tile(np.arange(100), 2)), train).queries == 100  # as a bootstrap draws
    assert overlap(train, train).covers_log
    other = dataclasses.replace(part, models=tuple(f"other {name}" for name in part.models))
    assert not overlap(other, train)


@pytest.mark.parametrize("size", [2, 3, 5, 50])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_a_few_shared_queries_are_described(splits, size, models):
    train, test = splits
    found = overlap(with_copies(test, train, size).select(train.models[:models]), train)
    assert (found.queries, found.covers_log) == (size if size > 2 else 0, False)


def test_a_query_with_a_gap_is_not_known_again_and_hides_no_log_that_was_tuned_on(splits):
    """An evaluation of a thinned log said that no query was answered by all models."""
    train = splits[0]
    answered = np.ones((300, len(train.models)), bool)
    answered[200:, -1] = False
    thinned = dataclasses.replace(train, answered=answered).take(slice(None))
    assert overlap(thinned, train)[:3] == (200, 300, True)


# -- by what a policy or a model carries


@pytest.mark.thorough
def test_a_policy_knows_the_queries_that_it_carries(splits, frontier, policy):
    train, test = splits
    ladder = frontier.policy(budget=float(frontier.cost.mean()))
    for tuned in (policy, ladder, frontier, frontier.model):
        assert overlap(train.take(slice(199)), tuned)[:3] == (199, 199, True)
        assert overlap(train.select(train.models[::-1]), tuned).covers_log
        assert not overlap(test, tuned)
    assert overlap(train.select(train.models[:2]), policy).covers_log
    assert not overlap(train, dataclasses.replace(policy, provenance={}))


@pytest.mark.thorough
def test_single_precision_carries_what_double_precision_reads(splits, policy):
    with jax.enable_x64(False):
        train = splits[0].take(slice(100))
        assert train.logprob.dtype == np.float32
        assert overlap(train, policy).queries == 100


# -- what it is for


@pytest.mark.thorough
def test_no_guarantee_rests_on_what_was_tuned_on(splits, frontier):
    train, test = splits
    assert rcjax.certify(frontier, test, max_error=0.4, tuned_on=train).n_queries == 1000
    with pytest.raises(LogError, match=r"all of its queries were tuned on: certify on queries that were"):
        rcjax.certify(frontier, train.take(slice(199)), max_error=0.4)
    with pytest.raises(LogError, match=r"at least 5 of its 1,000 queries were tuned on"):
        rcjax.certify(frontier, with_copies(test, train, 5), max_error=0.4, tuned_on=train)
    with pytest.raises(LogError, match="all of its queries were tuned on"):
        rcjax.certify(frontier, train.select(train.models[::-1]), max_error=0.4)


@pytest.mark.thorough
def test_a_check_leaves_them_out_and_refuses_the_whole(splits, policy):
    train, test = splits
    found = rcjax.check_policy(policy, with_copies(test, train, 20), retuning=False)
    assert found.remarks[0].startswith("20 of 1,000 queries were tuned on: left out; as 300 were tuned on, others may")
    rest = rcjax.check_policy(policy, test.take(slice(20, None)), retuning=False)
    assert (found.n_queries, found.error, found.decision) == (980, rest.error, rest.decision)
    assert not any("tuned on" in remark for remark in rcjax.check_policy(policy, test, retuning=False).remarks)
    for whole in (train, train.select(policy.models)):
        with pytest.raises(LogError, match="all of its queries were tuned on"):
            rcjax.check_policy(policy, whole)
