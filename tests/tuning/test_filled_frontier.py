"""What a target buys on a log: the best of all candidates, by brute force, and never less than a single model gives."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from selection_references import make_log
from tiers import thorough

import rcjax
from rcjax.frontier.points import PointStatus
from rcjax.tuning.label_weights import judging_of
from rcjax.tuning.trials import judge_pairs

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


@pytest.fixture(scope="module", params=thorough(LOGS, lambda name: name != "three confidences"))
def tuned(request, float64):
    """(log, model, selection)"""
    log = LOGS[request.param]()
    model = rcjax.fit(log)
    return log, model, rcjax.tuning.select_frontier(log, model=model)


def candidates(log, model, selection):
    """(penalty, cost, needed) of all that may be chosen, luck added: single models first."""
    trial = judge_pairs(log, model, judging_of(log, model.calibrators.transform))
    pairs = np.asarray(trial.policies.members).sum(1) > 1
    luck = selection.comparison.luck.budgets
    raised = np.minimum(trial.penalty + np.where(pairs, max(luck[1] - luck[0], 0.0), 0.0), 1.0)
    return raised, trial.cost, trial.cost + np.where(pairs, trial.reserve, 0.0)


def unbeaten(penalty, cost):
    """Whether no other errs less, or costs less, without being worse in the other; of equal ones, all."""
    less = (penalty <= penalty[:, None]) & (cost <= cost[:, None])
    return ~(less & ((penalty < penalty[:, None]) | (cost < cost[:, None]))).any(1)


@pytest.mark.thorough
def test_each_target_buys_the_best_of_all_candidates(tuned):
    """Up to what is thinned, and to what keeps less in hand than the policy that beats it."""
    penalty, cost, needed = candidates(*tuned)
    frontier = tuned[2].frontier
    best = unbeaten(penalty, cost)
    whole = len(np.unique(cost[best])) <= 250
    slack = 1e-9 if whole else 4e-3
    for budget in np.geomspace(cost.min(), 1.1 * cost.max(), 150):
        point = frontier.choose(budget=float(budget))
        own, limit = float(frontier.penalty[point]), budget * (1 + 1e-9)
        assert float(frontier.cost[point] + frontier.reserve[point]) <= limit
        assert own <= penalty[best & (needed <= limit)].min() + slack
        assert own <= penalty[needed <= limit].min() + 4e-3
    for error in np.linspace(penalty.min(), penalty.max(), 60):
        point = frontier.choose(max_error=float(error))
        least = cost[penalty <= error * (1 + 1e-9)].min()
        assert float(frontier.cost[point]) <= least * (1 + (1e-9 if whole else 0.02))
    for lam in np.geomspace(0.01, 100, 60) / cost.mean():
        point = frontier.choose(lam=float(lam))
        loss = float(frontier.penalty[point] + lam * frontier.cost[point])
        assert loss == pytest.approx((penalty + lam * cost).min(), rel=1e-9)  # corners are never thinned


def test_no_single_model_is_better_than_what_a_target_gets(tuned):
    """In errors as they are counted, and in the bill: by replay."""
    log, _, selection = tuned
    frontier = selection.frontier
    wrong, bill = 1 - np.asarray(log.correct).mean(0), np.asarray(log.query_cost).mean(0)
    replayed = rcjax.replay(frontier, log)
    error, spent = np.asarray(replayed.error), np.asarray(replayed.spent)
    np.testing.assert_allclose(spent, frontier.cost, rtol=1e-9)
    better = (wrong < error[:, None] - 1e-9) & (bill < spent[:, None] * (1 - 1e-9))
    assert not better.any()
    targets = [{"budget": float(money)} for money in (*bill, *(1.02 * bill), *np.geomspace(bill.min(), bill.max(), 40))]
    targets += [{"max_error": float(share)} for share in (*wrong, *np.linspace(wrong.min(), 1, 20))]
    targets += [{"lam": float(lam)} for lam in np.geomspace(0.01, 100, 30) / bill.mean()]
    for target in targets:
        point = frontier.choose(**target)
        expected, cost = float(frontier.error[point]), float(frontier.cost[point])
        assert not ((wrong < error[point] - 1e-9) & (bill < cost * (1 - 1e-9))).any(), target
        assert not ((wrong < expected - 1e-9) & (bill < cost * (1 - 1e-9))).any(), target
        if "budget" in target:  # what a budget pays for alone, it does not buy worse
            assert expected <= wrong[bill <= target["budget"] * (1 + 1e-9)].min() + 1e-9, target
        if "max_error" in target and (wrong <= target["max_error"]).any():
            assert cost <= bill[wrong <= target["max_error"]].min() * (1 + 1e-9), target


@pytest.mark.thorough
def test_corners_are_those_that_a_price_supports(tuned, tmp_path):
    """And the file of the frontier says so, point by point, and what a budget keeps in hand."""
    frontier = tuned[2].frontier
    penalty, cost, status = (np.asarray(getattr(frontier, name)) for name in ("penalty", "cost", "status"))
    supported = status == PointStatus.CONVERGED
    for row in range(len(cost)):
        # Of all lines between a dearer and a cheaper point, the one that is lowest here.
        lines = [
            penalty[dearer]
            + (penalty[cheaper] - penalty[dearer]) * (cost[row] - cost[dearer]) / (cost[cheaper] - cost[dearer])
            for dearer in range(row)
            for cheaper in range(row + 1, len(cost))
        ]
        below = min(lines, default=np.inf) - penalty[row]
        if abs(below) > 1e-12:  # with shares of one confidence many lie on a line
            assert supported[row] == (below > 0), row
    assert 1 < supported.sum() < len(cost)
    frontier.save(tmp_path / "frontier.json")
    points = json.loads((tmp_path / "frontier.json").read_text())["frontier"]
    assert [point["supported"] for point in points] == supported.tolist()
    np.testing.assert_array_equal([point["reserve"] for point in points], frontier.reserve)
    again = rcjax.load_frontier(tmp_path / "frontier.json")
    np.testing.assert_array_equal(again.reserve, frontier.reserve)
    np.testing.assert_array_equal(again.status, frontier.status)
    assert again.to_json() == frontier.to_json()
    assert [again.choose(budget=float(money)) for money in cost] == [
        frontier.choose(budget=float(money)) for money in cost
    ]
    single = np.asarray(frontier.members).sum(1) == 1
    assert (np.asarray(frontier.reserve)[single] == 0).all()
    assert (np.asarray(frontier.reserve)[~single] > 0).all()


@pytest.mark.thorough
def test_a_frontier_without_a_reserve_has_none_in_its_file(tmp_path):
    frontier = rcjax.solve_frontier(rcjax.fit(make_log(120, 2)), lam=[1e-2])
    (point,) = frontier.to_json()["frontier"]
    assert not {"supported", "reserve"} & {*point}
    frontier.save(tmp_path / "frontier.json")
    assert rcjax.load_frontier(tmp_path / "frontier.json").reserve is None
