"""What a log shows to have changed opens the decision, and no model is advised that has changed or is too dear."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax._base.tokens import Price
from rcjax.policy.ladder import with_provenance
from rcjax.tuning.diagnostics.causes import find_cause

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
SMALL, MIDDLE, LARGE = MODELS
N = 300


@pytest.fixture(scope="module")
def logs(float64):
    log = rcjax.sample_log(3 * N, seed=1).select(MODELS)
    return log.take(slice(N)), log.take(slice(N, None))


@pytest.fixture(scope="module")
def policy(logs):
    return rcjax.tune(logs[0], match=0.03, today=LARGE, intervals=False).policy


def decision(policy, log):
    return rcjax.check_policy(policy, log, retuning=False).decision


def dearer(log, factor):
    """The log with costs times a factor for all models, or one for each."""
    return dataclasses.replace(log, query_cost=log.query_cost * jnp.asarray(factor)).take(slice(None))


def replaced(log, model, by):
    """The log in which a model answers as another does."""
    j, i = (log.models.index(name) for name in (model, by))
    columns = {name: getattr(log, name).at[:, j].set(getattr(log, name)[:, i]) for name in ("logprob", "correct")}
    return dataclasses.replace(log, **columns)


def test_a_changed_model_opens_the_decision_and_is_not_advised(policy, logs):
    found = decision(policy, replaced(logs[1], LARGE, SMALL))
    assert found.headline.startswith(f"model {LARGE} has changed (error 2")
    assert " → 5" in found.headline.partition(")")[0]
    assert found.advice.startswith(f"until {LARGE} is mended, use {MIDDLE} alone; ")


def test_a_margin_beside_todays_that_has_changed_is_not_said_to_be_kept(policy, logs):
    sure = np.asarray(logs[1].logprob)[:, 1] > np.quantile(logs[1].logprob[:, 1], 0.7)  # LARGE is not asked there
    spoilt = logs[1].correct.at[:, 2].set(jnp.where(sure, 0, logs[1].correct[:, 2]))
    found = decision(policy, dataclasses.replace(logs[1], correct=spoilt))
    assert found.cause.endswith("; beside today's, which has changed, a margin tells little")
    assert found.alarm  # a new policy would be matched to a model that is broken
    assert not found.tune_again
    assert found.advice.startswith(f"until {LARGE} is mended, ")


@pytest.mark.parametrize(("model", "by"), [(MIDDLE, LARGE), (SMALL, MIDDLE)])
def test_a_model_that_errs_less_is_not_to_be_mended(policy, logs, model, by):
    found = decision(policy, replaced(logs[1], model, by))
    assert found.cause == ""
    assert "mended" not in found.advice


def test_a_rise_of_costs_that_may_be_chance_is_no_cause(policy, logs):
    log = dearer(logs[1], 1.15)
    assert find_cause(policy, log, [], is_dearer=True).in_costs
    assert find_cause(policy, log, [], is_dearer=False) is None


def test_a_rise_of_all_costs_opens_the_decision_with_the_saving_that_stays(policy, logs):
    found = decision(policy, dearer(logs[1], 2.0))
    assert found.alarm
    assert found.cause.startswith("all models cost 1.9 times as much: check")
    assert " prices and lengths first; the policy still saves " in found.cause
    assert found.advice == "check prices and lengths first, then check again: nothing better is shown yet"
    assert found.headline.partition(". ")[2].startswith("Dearer than expected: the policy costs $")
    one = decision(policy, dearer(logs[1], np.where(np.array(logs[1].models) == LARGE, 3.0, 1.0)))
    assert one.cause == ""


def test_changed_prices_are_named_with_their_factors(policy, logs):
    prices = {name: {"input": 1.0, "output": 1.0} for name in MODELS}
    priced = with_provenance(policy, tuning={**policy.provenance["tuning"], "prices": prices})
    now = {name: Price(1.0, 2.0 if name == LARGE else 1.0) for name in MODELS}
    found = decision(priced, dataclasses.replace(logs[1], prices=now))
    assert found.headline.startswith(f"prices have changed: {LARGE} (times 2.00). Not shown to keep the margin: ")


def test_no_model_beyond_the_budget_is_advised(logs):
    train, fresh = logs
    policy = rcjax.tune(train, budget=float(train.cost[1]), today=LARGE, intervals=False).policy
    spoilt = replaced(fresh, MIDDLE, SMALL)
    found = decision(policy, dearer(spoilt, 2.0))
    assert LARGE not in found.advice
