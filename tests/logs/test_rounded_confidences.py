"""What float32 has rounded to above certainty is certainty; what is clearly above it is refused."""

import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs.errors import LogError


def frame(column, value, kind=pl.Float64):
    """Two queries to two models, the first confidence as it is to be tried."""
    rows = {"query": [1, 2] * 2, "model": ["s", "s", "l", "l"], "correct": [1, 0, 1, 1], "cost": [1.0, 1.0, 9.0, 9.0]}
    low = -0.5 if column == "logprob" else 0.5
    return pl.DataFrame(rows).with_columns(pl.Series(column, [value, low, low, low], dtype=kind))


WRITERS = {".csv": pl.DataFrame.write_csv, ".parquet": pl.DataFrame.write_parquet, ".jsonl": pl.DataFrame.write_ndjson}


@pytest.mark.parametrize("kind", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(("column", "certain"), [("logprob", 0.0), ("confidence", 1.0)])
def test_rounding_above_certainty_is_certainty(tmp_path, column, certain, kind):
    for above in (0.0, 1.2e-7, 5e-7, 1e-6):
        table = frame(column, certain + above, kind)
        for ending, write in WRITERS.items():
            write(table, tmp_path / f"log{ending}")
        for source in (table, *(tmp_path / f"log{ending}" for ending in WRITERS)):
            logprob = np.asarray(rcjax.read_log(source).logprob)
            assert logprob.max() == 0.0
            assert sorted({*logprob.flat})[0] < -0.4


@pytest.mark.parametrize(("column", "certain"), [("logprob", 0.0), ("confidence", 1.0)])
def test_what_is_above_it_by_more_is_refused(column, certain):
    for above in (3e-6, 1e-3, 0.5):
        with pytest.raises(LogError, match=rf"row 1, model s: {column} .*> {certain:g}: "):
            rcjax.read_log(frame(column, certain + above))
