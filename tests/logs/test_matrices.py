"""Logs read batch by batch: the same log whatever the batches, and memory that the text does not fill."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.log_samples import HEADER, ROWS, assert_same, refusal, write
from hypothesis import HealthCheck, given, settings, strategies as st
from tiers import examples

from rcjax.logs import IncompleteLogWarning, LeftOutWarning, read_log, sources


@pytest.fixture
def batches(monkeypatch):
    """Sets how many rows are gone through at a time."""

    def of(size):
        monkeypatch.setattr(sources, "BATCH", size)

    return of


def quiet(source, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IncompleteLogWarning)
        return read_log(source, **options)


def table(seed, rows=60):
    """Rows in any order, of which some queries lack some models; one model comes up late."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(20 * 4)[:rows]
    frame = pl.DataFrame(
        {
            "query": [f"q{cell // 4}" if seed % 2 else str(cell // 4) for cell in cells],
            "model": [f"m{cell % 4}" for cell in cells],
            "logprob": np.where(rng.random(rows) < 0.2, -np.inf, -rng.exponential(size=rows)),
            "correct": rng.integers(0, 2, rows),
            "cost": rng.random(rows),
        }
    )
    late = pl.col("model") == "m3"
    return pl.concat([frame.filter(~late), frame.filter(late)])


@pytest.mark.thorough
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 3, 7, 59]))
def test_batches_of_any_size_give_the_same_log(seed, size, tmp_path, batches):
    frame = table(seed)
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet", row_group_size=11)
    text = frame.with_columns(pl.col("logprob").cast(pl.String))
    write(tmp_path, *map(json.dumps, text.to_dicts()), name="log.jsonl")
    batches(10**6)
    whole = quiet(frame)
    batches(size)
    for source in (
        frame,
        frame.to_pandas(),
        frame.lazy(),
        *(tmp_path / f"log.{k}" for k in ("csv", "parquet", "jsonl")),
    ):
        assert_same(quiet(source), whole)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("9,small,0.5,1,1", "log.csv, line 7, model small: logprob 0.5 > 0"),
        ("9,,-1,1,1", "log.csv, line 7: model is missing"),
        ("7,small,-1,1,1", "log.csv, line 7, model small: query 7 was answered already in line 4: keep one row"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_errors_in_later_batches_name_the_right_row(bad, message, size, tmp_path, batches):
    batches(size)
    lines = ["note," + HEADER, '"two\nlines, ""quoted""",' + ROWS[0], *("," + row for row in ROWS[1:])]
    assert refusal(write(tmp_path, *lines, "x," + bad)).startswith(message)
    message = refusal(write(tmp_path, HEADER, *ROWS, "9,small,-1,1,1,,x"))
    assert message.startswith("log.csv, line 6: 7 fields, 5 in the header")


def test_a_call_log_in_batches_counts_what_it_leaves_out(tmp_path, batches):
    """Failed and repeated calls, deferred queries, missing labels and cut lines: counts and log as of the whole."""
    lines = []
    for query in range(8):
        for model in ("small", "large"):
            call = {
                "call_log": 1,
                "query": f"q{query}",
                "model": model,
                "logprob": -1.0 - query,
                "answer": "B",
                "cost": 1e-5 if model == "small" else 2e-5,
            }
            call |= {"shadow": query % 4 != 3, "error": "no reply" if query == 2 and model == "small" else None}
            lines.append(json.dumps(call))
    lines[5:5] = [lines[0].replace("-1.0", "-9.0"), lines[3][:40]]
    path = write(tmp_path, *lines, name="calls.jsonl")
    labels = pl.DataFrame({"query": [f"q{n}" for n in range(7) if n != 5], "answer": list("BABBAB")})
    told = []
    for size in (10**6, 3):
        batches(size)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            log = read_log(path, labels=labels)
        told.append((log, [str(each.message) for each in caught if each.category is LeftOutWarning]))
    (whole, counts), (batched, again) = told
    assert_same(batched, whole)
    assert again == counts
    assert (
        "7 of 18 rows are left out: 1 cut off; 1 failed; 4 of queries that did not go to all models; 1 repeated"
        in counts[0]
    )
    assert whole.labelled.sum(0).tolist() == [4, 5]
    assert whole.labelled.tolist() == batched.labelled.tolist()


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory of a process itself: Linux tells it")
def test_reading_holds_numbers_and_no_texts(tmp_path):
    """300,000 rows in batches of 10,000, with a column of 45 MB that no log needs."""
    rows = 300_000
    path = tmp_path / "log.csv"
    columns = {"query": np.arange(rows) // 3, "model": ["a", "b", "c"] * (rows // 3), "note": ["x" * 150] * rows}
    values = {"logprob": -np.random.default_rng(0).random(rows), "correct": np.arange(rows) % 2, "cost": 1e-5}
    frame = pl.DataFrame(columns | values)
    frame.write_csv(path)
    small = tmp_path / "small.csv"
    frame.head(6_000).write_csv(small)
    code = """
import re, sys
import jax.numpy, polars, narwhals, rcjax.logs
def peak(): return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
path, small = sys.argv[1:]
rcjax.logs.sources.BATCH = 10_000
rcjax.logs.read_log(small)  # threads, libraries
before = peak()
log = rcjax.logs.read_log(path)
assert log.n_queries == 100_000
print(peak() - before)
"""
    peaks = [int(subprocess.check_output([sys.executable, "-c", code, path, small])) for _ in range(3)]
    assert min(peaks) < 200e6  # the allocator adds up to 50 MB by chance
