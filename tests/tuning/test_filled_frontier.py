"""What a target buys on a log: the best of all candidates, by brute force, and never less than a single model gives."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from selection_references import make_log

import rcjax
from rcjax.tuning.judging import charges, judge_log, judging_of

pytestmark = pytest.mark.usefixtures("float64")

MODELS = ["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"]


def rounded(log, levels=3):
    """The log, each model of which states one of so many log-probabilities."""
    logprob = np.asarray(log.logprob)
    values = np.quantile(logprob, (np.arange(levels) + 0.5) / levels, axis=0)
    cuts = np.quantile(logprob, np.arange(1, levels) / levels, axis=0)
    stated = np.take_along_axis(values, (logprob[None] > cuts[:, None]).sum(0), axis=0)
    return dataclasses.replace(log, logprob=jnp.asarray(stated))


LOGS = {
    "three models": lambda: rcjax.sample_log(200, seed=2).select(MODELS),
    "five models": lambda: rcjax.sample_log(200, seed=1),
    "three confidences": lambda: rounded(rcjax.sample_log(200, seed=3).select(MODELS)),
    "made by hand": lambda: make_log(120, 3, seed=2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOGS)
def test_each_target_buys_no_less_than_any_candidate_and_any_model_gives(name, float64):
    log = LOGS[name]()
    model = rcjax.fit(log)
    selection = rcjax.tuning.select_frontier(log, model=model)
    frontier, luck = selection.frontier, selection.comparison.luck[1]
    rows = log.logprob, log.correct, log.answered
    found = judge_log(model.calibrators, rows, charges(log), judging_of(log, model.calibrators.transform))
    cascade = np.asarray(found.first != found.second)
    penalty = np.minimum(np.asarray(found.error) + cascade * max(luck[1] - luck[0], 0.0), 1.0)
    cost = np.asarray(found.cost)
    for budget in (*np.geomspace(cost.min(), 1.1 * cost.max(), 60), *cost[~cascade]):
        policy = frontier.policy(budget=float(budget))
        assert policy.expected["cost"] <= budget * (1 + 1e-9)
        assert policy.expected["error"] <= penalty[cost <= budget * (1 + 1e-9)].min() + 1e-9
    for error in np.linspace(float(frontier.penalty.min()), penalty[~cascade].max(), 30):
        policy = frontier.policy(max_error=float(error))
        assert policy.expected["error"] <= error * (1 + 1e-9)
        assert policy.expected["cost"] <= cost[penalty <= error * (1 + 1e-9)].min(initial=np.inf) * (1 + 1e-9)
    for lam in np.geomspace(0.01, 100, 30) / cost[~cascade].mean():
        point = frontier.choose(lam=float(lam))
        assert float(frontier.penalty[point] + lam * frontier.cost[point]) <= (penalty + lam * cost).min() * (1 + 1e-9)
    # As its policies do on the log itself, no model errs less and costs less.
    replayed = rcjax.replay(frontier, log)
    np.testing.assert_allclose(replayed.spent, frontier.cost, rtol=1e-9)
    wrong, bill = 1 - np.asarray(log.correct).mean(0), np.asarray(log.query_cost).mean(0)
    error, spent = np.asarray(replayed.error)[:, None], np.asarray(replayed.spent)[:, None]
    assert not ((wrong < error - 1e-9) & (bill < spent * (1 - 1e-9))).any()
