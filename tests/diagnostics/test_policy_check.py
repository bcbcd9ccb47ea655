"""`check_policy`: quiet where nothing has changed, awake where something has, and what it says when it cannot tell."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from benchmarks import drift as changes
from rcjax.goodness_of_fit.reliability import brier_excess
from rcjax.logs import LogError
from rcjax.logs.log import FailedCalls

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-70b")
LAM = 1000.0
N = 300


@pytest.fixture(scope="module")
def logs(float64):
    """A log tuned on, a fresh one of its size, and one of a thousand queries."""
    log = rcjax.sample_log(2 * N + 1000, seed=1).select(MODELS)
    return log.take(slice(N)), log.take(slice(N, 2 * N)), log.take(slice(2 * N, None))


def tune(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=[LAM], cascades=[MODELS]).policy(lam=LAM)


@pytest.fixture(scope="module")
def policy(logs):
    return tune(logs[0])


def check(policy, log, **options):
    return rcjax.check_policy(policy, log, **{"retuning": False} | options)


def drifted(found):
    return {each.name for each in found.checks if each.verdict == "bad"}


def test_nothing_has_changed(policy, logs):
    found = rcjax.check_policy(policy, logs[1])
    assert (found.drifted, found.verdict, found.policy_models) == (False, "fine", MODELS)
    assert (found.n, found.reference) == (N, N)
    assert [each.name for each in found.checks] == [
        *["Brier score", "calibration error", "confidences"] * 2,
        "error",
        "cost",
        "re-tuning",
    ]
    assert not any(each.advice for each in found.checks)


@pytest.mark.parametrize(
    ("change", "seen_by"),
    [
        (lambda log, policy: changes.surer(log, 1.0), {"Brier score", "confidences"}),
        (lambda log, policy: changes.swapped(log, policy), {"confidences"}),
        (lambda log, policy: changes.less_right(log, 0.1, np.random.default_rng(0)), {"error"}),
        (lambda log, policy: changes.dearer(log, 2.0), {"cost"}),
    ],
    ids=["surer", "replaced", "less right", "dearer"],
)
def test_changes_are_seen_in_a_thousand_queries(policy, logs, change, seen_by):
    assert not check(policy, logs[2]).drifted
    found = check(policy, change(logs[2], policy))
    assert found.drifted
    assert seen_by <= drifted(found)
    assert all(each.advice for each in found.checks if each.verdict == "bad")


def test_re_tuning_gains_where_the_models_have_changed_places(policy, logs):
    log = logs[1]
    turned = dataclasses.replace(log, logprob=log.logprob[:, ::-1], correct=log.correct[:, ::-1])
    found = rcjax.check_policy(policy, turned)
    assert "re-tuning" in drifted(found)
    assert found.retuning["share"] > 0.02
    assert found.retuning["loss"] > found.retuning["retuned"]
    assert found.retuning["n"] == N


@pytest.mark.thorough
def test_figures_are_those_of_a_replay_and_of_the_log(policy, logs):
    fresh = logs[1]
    found, seen = check(policy, fresh), rcjax.replay(policy, fresh)
    assert found.error["seen"] == pytest.approx(float(seen.error))
    assert found.error["se"] == pytest.approx(float(seen.error_se))
    assert found.cost["seen"] == pytest.approx(float(seen.cost))
    assert found.cost["se"] > float(seen.cost_se)  # mean costs are estimates, too
    assert found.error["tuned"] == pytest.approx(float(rcjax.replay(policy, logs[0]).error))
    for row in found.models:
        j = fresh.models.index(row["model"])
        raw, right = np.asarray(fresh.logprob)[:, j], np.asarray(fresh.correct)[:, j]
        phi = np.array([policy.calibrate(row["model"], logprob=value) for value in raw.tolist()])
        assert row["calibration_error"] == pytest.approx(rcjax.model.expected_calibration_error(phi, right), abs=1e-4)
        assert row["brier_excess"] == pytest.approx(brier_excess(phi, right).mean(), abs=1e-6)
        assert row["median"] == pytest.approx(np.exp(np.median(raw)), rel=1e-6)


@pytest.mark.thorough
def test_the_standard_error_of_the_cost_counts_that_mean_costs_are_estimates(policy, logs):
    """By drawing the queries again."""
    rng, costs = np.random.default_rng(0), []
    for _ in range(300):
        costs.append(float(rcjax.replay(policy, logs[1].take(rng.integers(0, N, N))).cost))
    assert check(policy, logs[1]).cost["se"] == pytest.approx(np.std(costs), rel=0.15)


def test_a_policy_that_carries_nothing_says_what_to_do(policy, logs):
    with pytest.raises(ValueError, match=r"carries no queries .* made by hand: tune one"):
        check(dataclasses.replace(policy, provenance={}), logs[1])


def test_the_interval_of_the_tuning_is_the_promise(policy, logs):
    expected = {
        **policy.expected,
        "error": 0.0005,
        "error_low": 0.0,
        "error_high": 0.001,
        "cost_low": 0.0,
        "cost_high": 1.0,
        "level": 0.9,
    }
    found = check(dataclasses.replace(policy, expected=expected), logs[1])
    assert drifted(found) == {"error"}
    assert found.error["interval"] == [0.0, 0.001]
    (told,) = (each.advice for each in found.checks if each.verdict == "bad")
    assert "(0.0 % to 0.1 %) was expected" in told


def test_a_policy_that_promises_nothing_is_held_to_what_it_did(policy, logs):
    found = rcjax.check_policy(dataclasses.replace(policy, expected={}), logs[1])
    assert found.error["expected"] == found.error["tuned"]
    assert found.retuning is None
    assert found.remarks == ("whether tuning again would gain was not tested: the policy does not record its λ",)


def test_where_models_were_not_asked_a_remark_says_what_that_means(policy, logs):
    def without(some):
        answered = jnp.ones((N, 2), bool).at[:some, 1].set(False)
        logprob = jnp.where(answered, logs[1].logprob, jnp.nan)
        return dataclasses.replace(logs[1], answered=answered, logprob=logprob)

    found = check(policy, without(30))
    assert (found.n, [row["answers"] for row in found.models]) == (N - 30, [N, N - 30])
    assert found.remarks[0] == "30 of 300 queries lack the answer of some model, and do not count"
    assert not found.drifted
    failed = FailedCalls(frozenset(MODELS), frozenset(MODELS[1:]), 30)
    assert drifted(check(policy, dataclasses.replace(without(30), failed=(failed,)))) == {"lacking answers"}


def test_everything_is_json(policy, logs):
    right = jnp.asarray(logs[1].correct).at[:].set(True)
    found = rcjax.check_policy(policy, dataclasses.replace(logs[1], correct=right)).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["drifted"] is True
    assert {"figure", "limits", "p_value", "verdict", "advice"} <= set(found["checks"][0])


def test_what_cannot_be_checked(policy, logs):
    with pytest.raises(LogError, match="the policy was tuned on this very log"):
        check(policy, logs[0])
    with pytest.raises(LogError, match=r"no model 'llama3\.1-70b'"):
        check(policy, logs[1].select(MODELS[:1]))
    with pytest.raises(LogError, match="fewer than two answers of"):
        check(policy, logs[1].take([0]))


def test_questions_of_another_kind_alarm(shared_data):
    prices = shared_data / "prices.toml"
    pair = ("llama3.1-8b", "llama3.1-70b")
    read = {"prices": prices, "models": pair, "task": "choice"}
    train, fresh = (rcjax.read_log(shared_data / f"mmlu_llama_{part}.csv", **read) for part in ("train", "test"))
    policy = rcjax.solve_frontier(rcjax.fit(train), lam=[LAM], cascades=[pair]).policy(lam=LAM)
    assert not check(policy, fresh).drifted
    found = check(policy, rcjax.read_log(shared_data / "triviaqa_llama_test.csv", **read))
    assert {"confidences", "error"} <= drifted(found)
    assert "cost" not in drifted(found)
    assert any("costs" in remark and "which is no drift" in remark for remark in found.remarks)
