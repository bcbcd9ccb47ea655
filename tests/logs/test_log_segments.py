"""The column that tells the segment of each query: read, carried along, refused where it cannot be right."""

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
from log_samples import refusal
from misses import in_turn

from rcjax.logs import read_answers, read_log

TABLE = {
    "query": ["q1", "q1", "q2", "q2", "q3", "q3"],
    "model": ["small", "large"] * 3,
    "confidence": [0.4, 0.9, 0.8, 0.7, 0.3, 0.6],
    "correct": [0, 1, 1, 1, 0, 1],
    "cost": [1e-5, 3e-4] * 3,
    "Language": ["de", "de", "en", "en", "de", "de"],
}


def frame(**changes):
    return pl.DataFrame({**TABLE, **changes})


@in_turn("kind", ["polars", "pandas", "csv", "jsonl", "parquet"])
def test_every_source_tells_the_same_segments(tmp_path, kind):
    source = frame()
    if kind == "pandas":
        source = pd.DataFrame(TABLE)
    elif kind != "polars":
        path = tmp_path / f"log.{kind}"
        writers = {"csv": source.write_csv, "jsonl": source.write_ndjson, "parquet": source.write_parquet}
        writers[kind](path)
        source = path
    log = read_log(source, by="language")
    assert (log.by, log.segment) == ("language", ("de", "en", "de"))


def test_without_it_nothing_is_different():
    plain, told = read_log(frame()), read_log(frame(), by="Language")
    assert (plain.by, plain.segment) == (None, None)
    assert plain.digest == told.digest
    assert plain.take([0, 1]).segment is None


def test_it_is_carried_along():
    log = read_log(frame(), by="Language")
    assert log.take([2, 1, 2]).segment == ("de", "en", "de")
    assert log.take(np.array([False, True, False])).segment == ("en",)
    assert log.select(["large"]).segment == log.segment
    assert sorted([*log.split(0.5, 0)[0].segment, *log.split(0.5, 0)[1].segment]) == ["de", "de", "en"]
    assert read_answers(frame(), ["small"], by="Language").segment == log.segment


def test_numbers_are_names():
    assert read_log(frame(Language=[1, 1, 2, 2, 1, 1]), by="language").segment == ("1", "2", "1")


@in_turn(
    ("changes", "by", "message"),
    [
        ({}, "langage", "no column langage to tell the segments (did you mean 'Language' for 'langage'?)"),
        ({}, "model", "by model: segments are told by a column of their own, known before the first call"),
        ({}, "Correct", "by Correct: segments are told by a column of their own"),
        (
            {"Language": ["de", None, "en", "en", "de", "de"]},
            "Language",
            "row 2, model large: Language is missing: say which segment the query is of",
        ),
        (
            {"Language": ["de", "de", "en", "fr", "de", "de"]},
            "Language",
            "row 4, model large: Language fr is not en, as row 3 has it for this query: a query is of one segment",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(changes, by, message):
    assert message in refusal(frame(**changes), by=by)


def test_a_query_may_not_change_its_segment_from_one_batch_to_the_next(monkeypatch):
    monkeypatch.setattr("rcjax.logs.checked_rows.BATCH", 2)
    told = frame(
        query=["q1", "q1", "q2", "q2", "q1", "q3"], model=["small", "large", "small", "large", "other", "small"]
    )
    assert "row 6" in refusal(
        told.with_columns(Language=pl.Series(["de", "de", "en", "en", "de", None])), by="Language"
    )
    moved = told.with_columns(Language=pl.Series(["de", "de", "en", "en", "fr", "en"]))
    assert "row 5, model other: Language fr is not de, as row 1 has it" in refusal(moved, by="Language")


def test_the_log_of_a_service_tells_it_in_its_own_column(tmp_path):
    rows = [
        {
            "call_log": 1,
            "query": f"q{i}",
            "model": model,
            "logprob": -0.1 * i,
            "cost": 1e-5,
            "shadow": True,
            "error": None,
        }
        | {"segment": ["de", ""][i % 2], "correct": 1}
        for i in range(1, 5)
        for model in ("small", "large")
    ]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_log(path, by="language").segment == ("", "de", "", "de")
