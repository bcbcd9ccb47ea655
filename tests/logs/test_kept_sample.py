"""The queries that a policy carries: they come back as they were, and are few."""

import base64
import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax.logs import Log
from rcjax.logs.kept_sample import describe_kept_sample, read_kept_sample
from rcjax.logs.log import HandLabels
from rcjax.policy.spec import Spec
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies

pytestmark = pytest.mark.usefixtures("float64")


def make_log(n: int = 50, k: int = 3) -> Log:
    rng = np.random.default_rng(0)
    logprob = np.where(rng.random((n, k)) < 0.3, 0.0, -rng.exponential(size=(n, k)))
    logprob[0, 0] = -np.inf
    answered = rng.random((n, k)) < 0.9
    answered[:2] = True
    cost = rng.lognormal(-10, 0.5, (n, k)) * answered
    return Log(
        models=tuple(f"model {j}" for j in range(k)),
        logprob=jnp.asarray(np.where(answered, logprob, np.nan)),
        correct=jnp.asarray((rng.random((n, k)) < 0.6) & answered),
        query_cost=jnp.asarray(cost),
        answered=jnp.asarray(answered),
        cost=jnp.asarray(cost.sum(0) / answered.sum(0)),
        queries=tuple(range(n)),
        task="choice",
        source="made",
    )


def again(log: Log) -> Log:
    return read_kept_sample(json.loads(json.dumps(describe_kept_sample(log), allow_nan=False)), log.task)


def test_a_small_log_is_kept_whole():
    log = make_log()
    back = again(log)
    assert (back.models, back.n_queries, back.task) == (log.models, 50, "choice")
    np.testing.assert_array_equal(back.answered, log.answered)
    np.testing.assert_array_equal(back.correct, log.correct)
    np.testing.assert_array_equal(np.asarray(back.logprob, np.float32), np.asarray(log.logprob, np.float32))
    np.testing.assert_allclose(back.query_cost, log.query_cost, rtol=1e-3)
    np.testing.assert_allclose(back.cost, log.cost, rtol=1e-3)


@pytest.mark.parametrize(("k", "size"), [(2, 400), (5, 360), (30, 60)])
def test_a_large_log_is_sampled_by_query_and_always_alike(k, size):
    log = make_log(1000, k)
    kept = again(log)
    assert kept.n_queries == size
    rows = {tuple(row) for row in np.nan_to_num(np.asarray(log.logprob, np.float32), nan=1.0).tolist()}
    assert {tuple(row) for row in np.nan_to_num(np.asarray(kept.logprob), nan=1.0).tolist()} <= rows
    assert describe_kept_sample(log) == describe_kept_sample(log)


def packed(data, **changes):
    """The sample with other columns; None for one that is left out."""
    with np.load(io.BytesIO(base64.b64decode(data["columns"]))) as archive:
        columns = {name: column for name, column in ({**archive} | changes).items() if column is not None}
    content = io.BytesIO()
    np.savez_compressed(content, **columns)
    return data | {"columns": base64.b64encode(content.getvalue()).decode()}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: {**data, "queries": None},
        lambda data: {**data, "queries": 7},
        lambda data: {**data, "columns": "no base64"},
        lambda data: {**data, "columns": data["columns"][:80]},
        lambda data: packed(data, cost=None),
        lambda data: packed(data, correct=np.zeros((50, 3), int)),
        lambda data: packed(data, logprob=np.ones((50, 3))),
        lambda data: packed(data, names=np.array(["q"] * 50)),
    ],
)
def test_a_damaged_sample_is_refused_with_its_place(damage):
    with pytest.raises(ValueError, match=r"tuned on are damaged: provenance\.kept_sample"):
        read_kept_sample(damage(describe_kept_sample(make_log())), "choice")


@pytest.mark.thorough
def test_a_policy_file_with_five_models_is_small_and_keeps_them(tmp_path):
    log = rcjax.sample_log(500, seed=0)
    thresholds, members = np.array([[0.6, 0.6, 0.6, 0.6, 0.0]]), np.ones((1, 5), bool)
    tenth, nothing = np.array([0.1]), np.zeros(1)
    expected, policies = LossTerms(tenth, tenth, nothing), Policies.from_cascades(thresholds, members)
    points = Points(tenth, nothing.astype(int), expected, policies)
    frontier = make_frontier(rcjax.fit(log), points, Spec(cascade="full"))
    policy = frontier.policy(lam=0.1)
    policy.save(tmp_path / "policy.json")
    assert (tmp_path / "policy.json").stat().st_size < 22_000
    assert rcjax.load_policy(tmp_path / "policy.json") == policy
    assert len(repr(policy)) < 4_000
    kept = read_kept_sample(rcjax.load_policy(tmp_path / "policy.json").provenance["kept_sample"], "choice")
    assert kept.models == log.models
    frontier.save(tmp_path / "frontier.json")
    assert rcjax.load_frontier(tmp_path / "frontier.json").policy(lam=0.1) == policy


def test_the_mask_of_labels_is_kept():
    log = make_log(900)
    labelled = (np.random.default_rng(1).random(log.logprob.shape) < 0.1) & np.asarray(log.answered)
    hand = HandLabels(jnp.asarray(labelled), jnp.zeros((*labelled.shape, 0)), ())
    partly = dataclasses.replace(log, correct=log.correct & labelled, hand_labels=hand)
    held = json.loads(json.dumps(describe_kept_sample(partly)))
    again = read_kept_sample(held, log.task)
    assert again.hand_labels is not None
    assert again.labelled.sum() == labelled.sum()  # queries with labels go first
    assert np.asarray(again.correct).sum() == np.asarray(partly.correct).sum()
