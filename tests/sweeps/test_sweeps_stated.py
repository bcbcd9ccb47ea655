"""A sweep over a log whose models state their confidences solves what `fit` and `solve_frontier` do, and keeps it."""

import numpy as np
import polars as pl
import pytest
from stated_samples import stated_log

import rcjax

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]


@pytest.fixture(scope="module")
def swept(tmp_path_factory, float64):
    logs = {"stated": stated_log("stated", n=120), "computed": rcjax.sample_log(120, seed=3).select(MODELS)}
    folder = tmp_path_factory.mktemp("sweep") / "out"
    options = {"cascades": ["all", "adaptive"], "copulas": ["Gumbel", "Frank"], "lam": 6, "replicates": 1, "panels": 17}
    return logs, rcjax.sweeps.sweep(logs, folder, **options)


MODELS = list(rcjax.demo_model().models[:3])


@pytest.mark.parametrize("name", ["stated", "computed"])
@pytest.mark.parametrize("copula", ["Gumbel", "Frank"])
def test_it_solves_what_fit_and_solve_do(swept, name, copula):
    logs, sweep = swept
    model = rcjax.fit(logs[name], copula=copula)
    kept = sweep.frontier(name, cascades="all", copula=copula)
    np.testing.assert_allclose(kept.model.copulas.theta, model.copulas.theta, rtol=1e-4)
    assert (kept.model.calibrators.stated is None) == (name == "computed")
    rows = sweep.points.collect().filter(pl.col("log") == name, pl.col("replicate") == 0, pl.col("copula") == copula)
    for search in ("all", "adaptive"):
        points = rows.filter(pl.col("cascades") == search).sort("lam")
        lam = points["lam"].to_numpy()
        alone = rcjax.solve_frontier(model, lam=lam, cascades=search)
        loss = points["error"].to_numpy() + lam * points["cost"].to_numpy()
        np.testing.assert_allclose(np.sort(loss), np.sort(alone.error + alone.lam * alone.cost), atol=1e-6)


def test_a_policy_of_it_knows_the_values(swept):
    logs, sweep = swept
    policy = sweep.frontier("stated", cascades="all", copula="Gumbel").policy(lam=1000.0)
    log = logs["stated"]
    assert all(calibration.stated for calibration in policy.calibrations.values())
    replayed = rcjax.replay(policy, log)
    assert 0 <= float(np.ravel(replayed.error)[0]) <= 1
