"""Seconds of a log: read, refused, carried along, and counted as money."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from helpers.log_samples import write
from helpers.timed_logs import timed_log

from rcjax.logs import read_log
from rcjax.logs.kept_sample import describe_kept_sample, read_kept_sample

HEADER = "query,model,logprob,correct,cost"


def lines(column, cell):
    rows = [f"{q},{m},-1,1,1,{cell if (q, m) == (2, 'a') else 1.5}" for q in (1, 2) for m in ("a", "b")]
    return [f"{HEADER},{column}", *rows]


def test_milliseconds_are_seconds(tmp_path):
    path = write(tmp_path, *lines("latency_ms", "250"))
    log = read_log(path)
    assert np.asarray(log.seconds, float)[1, 0] == pytest.approx(0.25)
    assert np.asarray(log.seconds, float)[0, 0] == pytest.approx(0.0015)
    assert np.asarray(read_log(write(tmp_path, *lines("seconds", "250"), name="s.csv")).seconds)[1, 0] == 250


@pytest.mark.parametrize("cell", ["", "nan", "NaN"])
def test_an_empty_cell_is_unknown(tmp_path, cell):
    log = read_log(write(tmp_path, *lines("seconds", cell)))
    assert np.isnan(np.asarray(log.seconds)).tolist() == [[False, False], [True, False]]


def test_the_latency_of_a_vote_is_the_longest():
    rows = {
        "query": ["q", "r"] * 3 + ["q", "r"],
        "model": ["small"] * 6 + ["large"] * 2,
        "sample": [1, 1, 2, 2, 3, 3, 1, 1],
    }
    rows |= {"confidence": [0.5] * 8, "correct": [1, 0] * 4, "cost": [1.0] * 8, "answer": list("aabbabab")}
    seconds = [1.0, 2.0, 5.0, None, 3.0, 1.0, 9.0, 8.0]
    log = read_log(pl.DataFrame(rows | {"seconds": seconds}))
    by_name = dict(zip(log.models, np.asarray(log.seconds).T.tolist(), strict=True))
    assert by_name["small"][0] == 5.0
    assert np.isnan(by_name["small"][1])  # that of one of them is not known
    assert by_name["large"] == [9.0, 8.0]


@pytest.mark.thorough
def test_the_carried_sample_has_costs_and_seconds():
    log = timed_log(30, unknown=0.1)
    read = read_kept_sample(describe_kept_sample(log), "generation")
    np.testing.assert_allclose(np.asarray(read.seconds), np.asarray(log.seconds), rtol=2e-3)
    whole = timed_log(30)
    assert (
        read_kept_sample(describe_kept_sample(dataclasses.replace(whole, seconds=None)), "generation").seconds is None
    )
