"""What float32 has rounded to above certainty is certainty; what is clearly above it is refused."""

import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs.errors import LogError

COLUMNS = [("logprob", 0.0), ("confidence", 1.0)]


def frame(column, value, kind=pl.Float64):
    """Two queries to two models, the first confidence as it is to be tried."""
    rows = {"query": [1, 2] * 2, "model": ["s", "s", "l", "l"], "correct": [1, 0, 1, 1], "cost": [1.0, 1.0, 9.0, 9.0]}
    low = -0.5 if column == "logprob" else 0.5
    return pl.DataFrame(rows).with_columns(pl.Series(column, [value, low, low, low], dtype=kind))


@pytest.mark.parametrize("kind", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(("column", "certain"), COLUMNS)
@pytest.mark.parametrize("above", [0.0, 1e-6])
def test_a_confidence_above_1_by_rounding_is_1(tmp_path, kind, column, certain, above):
    table, path = frame(column, certain + above, kind), tmp_path / "log.csv"
    table.write_csv(path)
    for source in (table, path):
        assert np.asarray(rcjax.read_log(source).logprob)[0].tolist() == [0.0, pytest.approx(np.log(0.5), abs=0.2)]


@pytest.mark.parametrize(("column", "certain"), COLUMNS)
@pytest.mark.parametrize("above", [3e-6, 0.5])
def test_a_confidence_above_1_by_more_is_refused(column, certain, above):
    with pytest.raises(LogError, match=rf"row 1, model s: {column} .*> {certain:g}: "):
        rcjax.read_log(frame(column, certain + above))
