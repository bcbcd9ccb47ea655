"""Seconds of two models that are asked at the same time: the slower one counts, as in service."""

import jax
import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.policy import Calibration, Policy, Rule
from rcjax.policy.decisions import Agreement
from rcjax.policy.spec import SecondsLimit
from rcjax.tuning.search import SecondsFilter

NAMES = ("small", "other", "large")
SECONDS = {"small": 1.0, "other": 1.5, "large": 2.0}


def log(n=40):
    """Three of four queries on which the cheap models agree; no confidence."""
    rows = [
        {"query": q, "model": m, "correct": int(q % 4 > 0 or m == "large"), "cost": 1.0 if m != "large" else 20.0}
        | {"answer": f"{q}" if q % 4 or m == "large" else f"{q} {m}", "seconds": SECONDS[m]}
        for q in range(n)
        for m in NAMES
    ]
    with pytest.warns(rcjax.logs.NoConfidenceWarning):
        return rcjax.read_log(pl.DataFrame(rows))


ALWAYS = (Rule(1.0, "ask", "other"),)


def policy(first=ALWAYS):
    return Policy(
        NAMES,
        dict.fromkeys(NAMES, Calibration("none", 2.0, 1.0, -9.0, 0.0)),
        {"small": first, "other": (Rule(0.99, "ask", "large"), Rule(1.0, "answer")), "large": (Rule(1.0, "answer"),)},
        {"small": 1.0, "other": 1.0, "large": 20.0},
        agreements={"other": Agreement("small", "large")},
    )


def test_two_models_that_are_always_asked_are_asked_at_the_same_time():
    assert policy().parallel_model == "other"
    assert policy((Rule(0.9, "ask", "other"), Rule(1.0, "answer"))).parallel_model is None
    assert policy((Rule(1.0, "ask", "large"),)).parallel_model is None
    assert policy((Rule(1.0, "answer"),)).parallel_model is None


def test_a_replay_counts_the_slower_of_both():
    whole = rcjax.replay(policy(), log())
    assert float(whole.seconds.mean) == pytest.approx(1.5 + 0.25 * 2.0, rel=1e-5)
    one_by_one = rcjax.replay(policy((Rule(0.9, "ask", "other"), Rule(1.0, "answer"))), log())
    assert float(one_by_one.seconds.mean) == pytest.approx(2.5 + 0.25 * 2.0, rel=1e-5)  # all are as sure: .88


@pytest.mark.thorough
def test_a_limit_on_the_seconds_counts_the_slower_of_both():
    whole = log(200)
    budget = {"budget": 8.0, "intervals": False}
    tuned = rcjax.tune(whole, max_seconds=2.1, **budget)
    assert tuned.policy.expected["error"] < 0.1
    pairs = [(rung.first_model, rung.parallel_model) for rung in tuned.policy.adjacent_rungs if len(rung.models) > 1]
    assert pairs == [("other", "small")]  # models of equal cost are in the order of their names
    filtered = SecondsFilter.of(SecondsLimit.of("2.1"), whole)
    figure, _ = filtered.measure(jax.tree.map(np.asarray, tuned.frontier.policies), tuned.model)
    assert figure.max() < 2.1
