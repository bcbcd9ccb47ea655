"""Replay: policies on logged data against a loop over `Policy.step`, standard errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from rcjax.logs import Log, LogError, read_log
from rcjax.model.calibrated_models import CalibratedModels
from rcjax.model.calibration import Calibrator
from rcjax.policy import Calibration, Defer, Policy, Rule
from rcjax.policy.spec import Spec
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, policies_from_rules
from rcjax.tuning.replaying.replay import Replay, replay

pytestmark = [pytest.mark.optimised, pytest.mark.usefixtures("float64")]

MODELS = ("small", "middle", "large")
CALIBRATIONS = {
    "small": Calibration("choice", -0.5, 0.6, 0.01, 9.0),
    "middle": Calibration("choice", -0.2, 0.7, 0.02, 10.0),
    "large": Calibration("choice", 0.5, 0.5, 0.05, 12.0),
}
COST = {"small": 1.0, "middle": 3.0, "large": 10.0}
ANSWER = Rule(1.0, "answer")


def make_log(n: int, seed: int = 0, missing: float = 0.0) -> Log:
    rng = np.random.default_rng(seed)
    rows = []
    for query in range(n):
        for model in MODELS:
            logprob = rng.choice([-math.inf, 0.0, math.log(rng.uniform()), -1e-20], p=[0.05, 0.1, 0.8, 0.05])
            cost = COST[model] * rng.uniform(0.5, 1.5)
            rows.append((query, model, logprob, rng.integers(2), cost))
    kept = [row for i, row in enumerate(rows) if i < 6 or rng.uniform() >= missing]
    names = ("query", "model", "logprob", "correct", "cost")
    frame = pl.DataFrame({name: [row[i] for row in kept] for i, name in enumerate(names)}, strict=False)
    return read_log(frame, models=MODELS, task="choice")


def make_policy(small: list[Rule], middle: list[Rule]) -> Policy:
    rules = {"small": small, "middle": middle, "large": [ANSWER]}
    return Policy(MODELS, CALIBRATIONS, rules, COST)  # type: ignore[arg-type]


def cut(threshold: float, larger: str) -> list[Rule]:
    return [Rule(threshold, "ask", larger), *([ANSWER] if threshold < 1 else [])]


def thresholds(first: float, second: float) -> Policy:
    return make_policy(cut(first, "middle"), cut(second, "large"))


ADAPTIVE = make_policy(
    [
        Rule(0.4, "ask", "large"),
        Rule(0.6, "ask", "middle"),
        Rule(0.7, "answer"),
        Rule(0.8, "ask", "large"),
        ANSWER,
    ],
    [Rule(0.5, "ask", "large"), ANSWER],
)


def by_steps(policy: Policy, log: Log) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Wrong, cost at mean prices, money spent and answering model of each complete query, step by step."""
    logprob, correct, cost = (np.asarray(each) for each in (log.logprob, log.correct, log.query_cost))
    mean_cost = cost[log.complete].mean(axis=0)
    results = []
    for i in np.flatnonzero(log.complete):
        charged, spent, name = 0.0, 0.0, policy.first_model
        while True:
            j = log.models.index(name)
            charged, spent = charged + mean_cost[j], spent + cost[i, j]
            decision = policy.step(name, logprob=float(logprob[i, j]))
            if not isinstance(decision, Defer):
                break
            name = decision.next_model
        results.append((not correct[i, j], charged, spent, policy.models.index(name)))
    wrong, charged, spent, place = map(np.array, zip(*results, strict=True))
    return wrong, charged, spent, place


def assert_like_steps(seen: Replay, policy: Policy, log: Log) -> None:
    wrong, charged, spent, place = by_steps(policy, log)
    root = np.sqrt(len(wrong))
    expected = {
        "error": wrong.mean(),
        "cost": charged.mean(),
        "spent": spent.mean(),
        "error_se": wrong.std(ddof=1) / root,
        "cost_se": charged.std(ddof=1) / root,
        "spent_se": spent.std(ddof=1) / root,
        "share": np.bincount(place, minlength=len(policy.models)) / len(place),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(seen, name), value, rtol=1e-10, atol=1e-14, err_msg=name)


def as_frontier(policies: list[Policy]) -> Frontier:
    """A frontier of policies that share their models and calibrations; of its figures replay asks nothing."""
    calibrators = Calibrator.from_calibrations([policies[0].calibrations[name] for name in MODELS], float)
    nothing = np.zeros(len(policies))
    points = Points(
        nothing, nothing, LossTerms(nothing, nothing, nothing), policies_from_rules([MODELS] * len(policies), policies)
    )
    return make_frontier(CalibratedModels(calibrators, jnp.ones(3), MODELS), points, Spec(cascade="adaptive"))


@pytest.mark.thorough
def test_a_frontier_is_its_policies_one_by_one():
    policies = [thresholds(a, b) for a in (0.0, 0.5, 0.62, 1.0) for b in (0.3, 0.8)] + [ADAPTIVE]
    log = make_log(300, seed=3)
    seen = replay(as_frontier(policies), log)
    assert seen.share.shape == (9, 3)
    for i, policy in enumerate(policies):
        single = replay(policy, log)
        for name in ("error", "cost", "error_se", "cost_se", "share", "spent", "spent_se"):
            np.testing.assert_allclose(getattr(seen, name)[i], getattr(single, name), rtol=1e-12, atol=1e-15)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::rcjax.logs.IncompleteLogWarning")
def test_only_the_queries_that_all_models_asked_have_answered():
    log = make_log(200, seed=5, missing=0.2)
    seen = replay(thresholds(0.6, 0.6), log)
    assert seen.n_queries == log.complete.sum() < 200
    assert_like_steps(seen, thresholds(0.6, 0.6), log)
    # small never asks middle here, so the queries that middle lacks count, and the log need not have it.
    skipping = make_policy([Rule(0.6, "ask", "large"), ANSWER], [Rule(0.5, "ask", "large"), ANSWER])
    pair = log.select(["small", "large"])
    assert replay(skipping, log).n_queries == pair.complete.sum() > seen.n_queries
    assert replay(skipping, pair).n_queries == replay(skipping, log).n_queries
    assert float(replay(skipping, pair).share[1]) == 0


def test_other_models_and_another_order_do_not_matter():
    log = make_log(100, seed=6)
    shuffled = log.select(["large", "small", "middle"])
    assert float(replay(ADAPTIVE, log).cost) == float(replay(ADAPTIVE, shuffled).cost)


@pytest.mark.filterwarnings("ignore::rcjax.logs.IncompleteLogWarning")
def test_a_log_without_a_complete_query_is_refused():
    names = ("query", "model", "logprob", "correct", "cost")
    rows = [(q, m, -0.5, q % 2, 1.0) for q in range(6) for m in MODELS if (q % 3) != MODELS.index(m)]
    log = read_log(pl.DataFrame(rows, schema=list(names), orient="row"), models=MODELS)
    with pytest.raises(LogError, match="no query was answered by all of small, middle, large"):
        replay(thresholds(0.6, 0.6), log)


def test_one_query_has_no_standard_error():
    seen = replay(thresholds(0.6, 0.6), make_log(2).take([0]))
    assert seen.n_queries == 1
    assert math.isnan(seen.error_se)
    assert math.isnan(seen.cost_se)


@pytest.mark.thorough
def test_small_costs_add_up_in_float32():
    with jax.enable_x64(False):
        log = make_log(20_000, seed=8)
        cost = np.asarray(log.query_cost, np.float64)[:, 0].mean()
        np.testing.assert_allclose(replay(thresholds(0.0, 0.0), log).cost, cost, rtol=2e-7)


def test_a_second_call_compiles_nothing(compilations):
    log, other = make_log(60, seed=9), make_log(60, seed=10)
    first, second = thresholds(0.5, 0.5), thresholds(0.7, 0.1)
    replay(first, log)
    replay(as_frontier([first, second]), log)
    with compilations() as compiled:
        replay(second, other)
        replay(as_frontier([second, first]), other)
    assert not compiled


# -- area under the error–cost curve
