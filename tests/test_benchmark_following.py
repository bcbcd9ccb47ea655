"""The benchmark of following: a stream spends its budget, on errors between those of the rungs."""

import numpy as np
import pytest

from benchmarks.following import WINDOW, Rungs, error_for, follow


def test_a_stream_spends_its_budget():
    rng = np.random.default_rng(0)
    tuned = (1e-5, 5e-5, 2e-4)
    wrong = (rng.random((3, 500)) < np.array([0.4, 0.2, 0.1])[:, None]).astype(float)
    rungs = Rungs(tuned, wrong, 0 * wrong, np.array(tuned)[:, None] * rng.uniform(0.5, 1.5, (3, 500)))
    stream = follow(rungs, 1e-4, WINDOW, np.full(4000, 1.2), rng)
    assert stream.used == pytest.approx(1, abs=0.01)
    assert stream.error == pytest.approx(error_for(rungs, 1e-4 / 1.2), abs=0.03)
    assert 0 < stream.until < 2000
    assert 0 < stream.most < 150
