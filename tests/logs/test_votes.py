"""Several answers per query and model: the vote against a plain count, and what a log makes of them."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from rcjax import LogError, read_log
from rcjax.logs import LeftOutWarning
from rcjax.logs.answers import reduce_to_votes

ANSWERS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 10), st.floats(-5, 0)), min_size=1, max_size=6
)


def counted(answers, number):
    """(confidence, right, cost, answer) by a plain count; None where there are too few."""
    if len(answers) < number:
        return None
    voting = answers[:number]
    counts = Counter(answer for answer, *_ in voting if answer)
    winner = max(counts, key=lambda answer: counts[answer]) if counts else 0  # the first of the largest
    right = next(right for answer, right, *_ in voting if answer == winner)
    return counts[winner] / number, right, sum(cost for _, _, cost, _ in voting), winner


@given(st.lists(ANSWERS, min_size=1, max_size=5))
def test_votes_equal_a_count_by_hand(queries):
    rows = [
        {"model": 0, "query": query, "answer": answer, "correct": float(right), "cost": cost, "logprob": logprob}
        for query, own in enumerate(queries)
        for answer, right, cost, logprob in own
    ]
    votes, numbers = reduce_to_votes(pl.DataFrame(rows), 1)
    by_query = {row["query"]: row for row in votes.iter_rows(named=True)}
    enough = sorted((len(own) for own in queries), reverse=True)[max(2, -(-len(queries) // 2)) - 1 :]
    assert numbers == [enough[0] if enough else 1]
    for query, own in enumerate(queries):
        plain = counted(own, numbers[0])
        assert (plain is None) == (query not in by_query)
        if plain is not None and numbers[0] > 1:
            share, right, cost, answer = plain
            vote = by_query[query]
            assert np.exp(vote["logprob"]) == pytest.approx(share)
            assert (vote["correct"], vote["answer"]) == (right, answer)
            assert vote["cost"] == pytest.approx(cost)


def sampled(answers: Any = "aab", right="110", **more):
    """A log of two queries: three answers of small to each, one of large."""
    rows = [
        {"query": query, "model": "small", "sample": sample + 1, "answer": answer, "correct": int(own), "cost": 1.0}
        for query in (1, 2)
        for sample, (answer, own) in enumerate(zip(answers, right, strict=True))
    ]
    rows += [{"query": q, "model": "large", "sample": 1, "answer": "a", "correct": 1, "cost": 9.0} for q in (1, 2)]
    confidence = [0.1 * (1 + place) for place in range(len(rows))]
    return pl.DataFrame(rows).with_columns(confidence=pl.Series(confidence), **more)


def quiet(frame, **options):
    """The log, without what is said of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_log(frame, **options)


def share(log, query=0):
    """The confidence of small."""
    return float(np.exp(np.asarray(log.logprob)[query, log.models.index("small")]))


def test_several_samples_are_reduced_to_a_vote():
    says = r"to a query \(of small 3\): the confidence is the share of equal answers, the cost that of all answers$"
    with pytest.warns(LeftOutWarning, match=says):
        log = read_log(sampled())
    assert log.models == ("small", "large")
    assert np.asarray(log.cost).tolist() == [3.0, 9.0]
    assert np.exp(np.asarray(log.logprob)[0]).tolist() == pytest.approx([2 / 3, 0.7])  # of one answer its own
    assert np.asarray(log.correct)[0].tolist() == [True, True]
    assert np.asarray(log.answer)[0].tolist() == [0, 0]
    assert log.request_settings == {"small": {"signal": "votes", "samples": 3, "separate": True, "compare": "text"}}


@pytest.mark.parametrize(
    "column", [pl.col("sample"), pl.col("sample") * 5, pl.format("{}", 8 + pl.col("sample")), pl.col("sample") - 1]
)
def test_samples_vote_in_the_order_of_their_numbers(column):
    log = quiet(sampled("bca", "010"))
    shuffled = quiet(sampled("bca", "010").with_columns(sample=column).sample(fraction=1, shuffle=True, seed=3))
    order = [shuffled.queries.index(query) for query in log.queries]
    for name in ("logprob", "correct", "query_cost", "answer"):
        assert np.array_equal(np.asarray(getattr(log, name)), np.asarray(getattr(shuffled, name))[order])


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            sampled().drop("answer"),
            {},
            r"column sample, but no column answer .*: add it, or keep one row per",
        ),
        (
            pl.concat([sampled(), sampled()[:1]]),
            {},
            r"row 9, model small: sample 1 of the query is there already in row 1",
        ),
        (sampled(sample=None), {}, "row 1, model small: sample is missing: number the answers"),
        (
            sampled(),
            {"answers": pl.DataFrame({"query": [1], "model": ["small"], "answer": ["a"]})},
            "a table of answers does not tell the samples of polars.DataFrame apart: put a column answer",
        ),
    ],
)
def test_invalid_samples_are_refused(frame, options, message):
    with pytest.raises(LogError, match=message):
        read_log(frame, **options)
