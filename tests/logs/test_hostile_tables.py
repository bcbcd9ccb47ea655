"""Files of few bytes that would take all memory: a line tells what is wrong."""

import polars as pl
import pytest

from rcjax import read_log
from rcjax.logs import sources
from rcjax.logs.errors import LogError
from rcjax.logs.sources import join_parts


def table(path, rows, answer="A"):
    frame = {"query": [1] * rows, "model": ["a"] * rows, "logprob": [-0.1] * rows, "correct": [1] * rows}
    pl.DataFrame({**frame, "cost": [1.0] * rows, "answer": [answer] * rows}).write_parquet(path)
    return path


@pytest.mark.parametrize("read", [read_log, lambda path: join_parts([path.parent])])
def test_parquet_with_too_many_rows_or_texts_is_refused(tmp_path, monkeypatch, read):
    monkeypatch.setattr(sources, "MAX_ROWS", 100_000)
    monkeypatch.setattr(sources, "MAX_TEXT_BYTES", 1_000_000)
    many = table(tmp_path / "many.parquet", 100_001)
    with pytest.raises(LogError, match=r"many.parquet: 100,001 rows: rcjax reads 100,000; give a part of them"):
        read(many)
    many.unlink()
    long = table(tmp_path / "long.parquet", 20, "x" * 60_000)
    assert long.stat().st_size < 10_000
    with pytest.raises(LogError, match=r"long.parquet: 1 MB of text in \d,\d+ bytes: is it a log\?"):
        read(long)
