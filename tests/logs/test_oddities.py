"""Logs that can hardly be right are known by a line each, and real ones are not among them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs import NoConfidenceWarning, OddBudgetWarning, OddLogWarning
from rcjax.logs.oddities import describe_doubts, describe_oddities, measure_unevenness

LOG = rcjax.sample_log(300, seed=1).select(["llama3.2-1b", "llama3.1-70b"])


def labelled(right):
    return dataclasses.replace(LOG, correct=jnp.full_like(LOG.correct, right))


INVERTED = dataclasses.replace(LOG, logprob=jnp.log(jnp.clip(1 - jnp.exp(LOG.logprob), 1e-6, 1.0)))
ODD = [
    (LOG.take(slice(11)), ["11 queries cannot tell a good policy from a lucky one"]),
    (labelled(True), ["every answer of any model is right: nothing tells the models apart"]),
    (labelled(False), ["no answer of any model is right: nothing tells the models apart"]),
    (INVERTED, ["the surer llama3.2-1b is, the more often it is wrong", "the surer llama3.1-70b is"]),
]


def test_each_oddity_is_described_in_one_line():
    assert [*describe_oddities(LOG)] == []
    for log, told in ODD:
        found = [*describe_oddities(log)]
        assert [start for line, start in zip(found, told, strict=True) if line.startswith(start)] == told


def test_unevenness_of_one_query_is_a_half():
    assert measure_unevenness(np.arange(100.0), np.arange(100) == 3)[0] == 0.5  # half of all are unsure, and it is


def test_uninformative_confidences_are_not_called_inverted():
    rng = np.random.default_rng(0)
    for seed in range(40):
        noise = jnp.log(jnp.asarray(np.random.default_rng(seed).uniform(0.01, 1, LOG.logprob.shape)))
        log = dataclasses.replace(LOG, logprob=noise)
        assert [*describe_oddities(log)] == []
    ties = dataclasses.replace(LOG, logprob=jnp.asarray(rng.choice([-0.5, 0.0], LOG.logprob.shape)))
    assert [*describe_oddities(ties)] == []


@pytest.mark.filterwarnings("error::rcjax.logs.OddLogWarning")
def test_few_queries_and_a_confidence_that_never_varies_are_doubtful_and_not_refused():
    assert [*describe_doubts(LOG)] == []
    few = LOG.take(slice(36))
    assert [*describe_oddities(few), *describe_doubts(few)] == [
        "36 queries estimate an error only to ± 9 points: log 100 or more",
    ]
    constant = dataclasses.replace(LOG, logprob=LOG.logprob.at[:, 0].set(-0.7))
    assert [told.split(":")[0] for told in describe_doubts(constant)] == [
        "the confidence of llama3.2-1b is 0.497 in all 300 answers"
    ]
    three = rcjax.sample_log(100, seed=1).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    (told,) = describe_doubts(dataclasses.replace(three, logprob=three.logprob.at[:].set(-0.7)))
    assert told.startswith("the confidence of llama3.2-1b, llama3.1-8b is 0.497 in all 100 answers of each: ")
    with pytest.raises(OddLogWarning, match="no threshold parts the right ones"):  # as an error: before any search
        rcjax.tune(constant, budget=1e-4, intervals=False)


def test_reading_warns_once_of_a_log_without_confidences():
    rows = [(i, model, i % 3 > 0, float(len(model)), "x") for i in range(100) for model in ("tiny", "large")]
    frame = pl.DataFrame(rows, ["query", "model", "correct", "cost", "answer"], orient="row")
    with pytest.warns(NoConfidenceWarning, match="only whether models agree counts"):
        log = rcjax.read_log(frame)
    assert [*describe_doubts(log)] == []
    assert [told.split(" is ")[0] for told in describe_doubts(dataclasses.replace(log, answer=None))] == [
        "the confidence of tiny"
    ]


def test_a_budget_in_another_unit_is_doubted():
    with pytest.warns(
        OddBudgetWarning, match=r"was \$100 per million queries meant\? Then give budget=100e-6"
    ) as warned:
        rcjax.tune(LOG, budget=100, intervals=False)
    assert warned[0].filename == __file__  # the line of the caller


def test_tuning_warns_of_an_odd_log():
    with (
        pytest.warns(OddLogWarning, match="11 queries cannot tell a good policy"),
        pytest.raises(ValueError, match="no cascade"),
    ):
        rcjax.tune(ODD[0][0], budget=1e-12, intervals=False)
