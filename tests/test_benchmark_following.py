"""The benchmark of following: a stream spends its budget, on errors between those of the rungs."""

import numpy as np
import pytest

from benchmarks.budgets import SAMPLED, Source, Split
from benchmarks.following import WINDOW, Rungs, follow, measure


def test_a_stream_spends_its_budget():
    rng = np.random.default_rng(0)
    tuned = (1e-5, 5e-5, 2e-4)
    wrong = (rng.random((3, 500)) < np.array([0.4, 0.2, 0.1])[:, None]).astype(float)
    rungs = Rungs(tuned, wrong, np.array(tuned)[:, None] * rng.uniform(0.5, 1.5, (3, 500)))
    stream = follow(rungs, 1e-4, WINDOW, np.full(4000, 1.2), rng)
    assert stream.used == pytest.approx(1, abs=0.01)
    assert stream.error == pytest.approx(rungs.error_for(1e-4 / 1.2), abs=0.03)
    assert 0 < stream.until < 2000
    assert 0 < stream.most < 150


@pytest.mark.thorough
def test_a_row_for_each_window_and_change():
    rows = measure(Split(Source(SAMPLED, SAMPLED, None), 100, 100, 0), budgets=4, queries=300)
    assert [(row["window"], row["costs"]) for row in rows[:2]] == [(100.0, "as tuned"), (200.0, "as tuned")]
    assert len(rows) == 8
    assert all(np.isfinite(row["error"]) for row in rows)
