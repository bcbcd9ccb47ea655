"""Sweeps in this process: what `sweep` finds is what `fit`, `solve_frontier` and `replay` do, one by one."""

import dataclasses
import json

import jax
import numpy as np
import polars as pl
import pytest
from helpers.judged_logs import partly

import rcjax
from rcjax.solving.frontier.points import PointStatus

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
SIZES = {"small": 50, "other": 60}  # of one shape


@pytest.fixture(scope="module")
def logs(float64):
    return {name: rcjax.sample_log(n, seed=n).select(MODELS) for name, n in SIZES.items()}


@pytest.fixture(scope="module")
def settings():
    cascades = ["all", "adaptive", "labels"]
    return {"cascades": cascades, "copulas": ["gumbel", "frank"], "lam": 4, "replicates": 1, "train": 0.8, "panels": 17}


@pytest.fixture(scope="module")
def swept(logs, settings, tmp_path_factory):
    return rcjax.tuning.sweeps.sweep(logs, tmp_path_factory.mktemp("sweep"), **settings)


@pytest.fixture(scope="module")
def points(swept):
    return swept.points.collect()


def of(points, **wanted):
    for name, value in wanted.items():
        points = points.filter(pl.col(name).eq_missing(pl.lit(value)))
    return points.sort("lam")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "copula"), [("small", "Gumbel"), ("other", "Frank")])
def test_a_sample_is_fitted_and_solved_as_alone(points, swept, logs, name, copula):
    frontier = swept.frontier(name, cascades="all", copula=copula)
    sample = tuned_on(logs[name])
    model = rcjax.fit(sample, copula=copula)
    np.testing.assert_allclose(frontier.model.marginals.a, model.marginals.a, rtol=1e-5)
    for search in ("all", "adaptive"):
        found = of(points, log=name, replicate=0, cascades=search, copula=copula)
        lam = found["lam"].to_numpy()
        alone = rcjax.solve_frontier(model, lam=lam, cascades=search)
        # At its optimum a loss does not tell small steps of the thresholds; error and cost each do.
        loss = found["error"].to_numpy() + lam * found["cost"].to_numpy()
        np.testing.assert_allclose(loss, alone.error + alone.lam * alone.cost, rtol=0, atol=2e-8)


def tuned_on(log):
    """The queries that the sweep tunes on, as it says it draws them."""
    rng = np.random.default_rng([0, int(log.digest[:16], 16)])
    return log.take(np.sort(rng.permutation(log.n_queries)[: round(0.8 * log.n_queries)]))


@pytest.mark.thorough
@pytest.mark.parametrize("search", ["all", "adaptive", "labels"])
def test_held_out_figures_are_those_of_a_replay_on_the_other_queries(points, swept, logs, search):
    log = logs["other"]
    copula = None if search == "labels" else "Frank"
    found = of(points, log="other", replicate=0, cascades=search, copula=copula)
    ids = set(tuned_on(log).queries)
    fresh = log.take([row for row, query in enumerate(log.queries) if query not in ids])
    assert found["held_out"].unique().to_list() == [fresh.n_queries]
    again = of(points, log="other", replicate=1, cascades=search, copula=copula)
    assert again["held_out"].unique().to_list() == [fresh.n_queries], "what it was drawn from is not held out"
    assert again["error"].to_list() != found["error"].to_list()
    seen = rcjax.replay(swept.frontier("other", cascades=search, copula="Frank"), fresh)
    same = np.isin(found["cascade"].to_list(), found["cascade"].unique())
    np.testing.assert_allclose(found["held_out_error"].to_numpy()[same], np.asarray(seen.error)[same], atol=1e-12)
    np.testing.assert_allclose(found["held_out_cost"].to_numpy()[same], np.asarray(seen.cost)[same], rtol=1e-12)


@pytest.mark.thorough
def test_only_a_lost_batch_is_solved_again(swept, logs, settings):
    parts = sorted(swept.path.glob("parts/*.parquet"))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in parts}
    parts[0].unlink()
    (swept.path / "parts" / ".0123456789abcdef.tmp").write_bytes(b"half of a")
    calls = []
    rcjax.tuning.sweeps.sweep(logs, swept.path, **settings, progress=lambda *each: calls.append(each))
    assert sorted(swept.path.glob("parts/*")) == parts
    assert parts[0].read_bytes() == before[parts[0]][0]
    assert all(path.stat().st_mtime_ns == before[path][1] for path in parts[1:])
    assert calls[-1] == (len(SIZES) * 2,) * 2


@pytest.mark.thorough
def test_another_sweep_does_not_go_into_the_folder(swept, logs, settings):
    with pytest.raises(ValueError, match=r"holds another sweep: lam was 4 and is 5"):
        rcjax.tuning.sweeps.sweep(logs, swept.path, **settings | {"lam": 5})
    with pytest.raises(ValueError, match=r"holds another sweep: logs was"):
        rcjax.tuning.sweeps.sweep({**logs, "other": logs["small"]}, swept.path, **settings)


@pytest.mark.thorough
def test_a_bad_log_is_reported_and_the_others_are_swept(logs, tmp_path):
    rows = ["1,a,1,2.5,1", "1,b,1,0.5,2", "2,a,1,0.5,1", "2,b,0,0.5,2"]
    (tmp_path / "bad.csv").write_text("\n".join(["query,model,correct,confidence,cost", *rows]))
    shape = logs["small"].logprob.shape
    labelled = np.broadcast_to(np.arange(shape[0])[:, None] < 20, shape).copy()
    everything = {
        "good": logs["small"],
        "bad": tmp_path / "bad.csv",
        "none": tmp_path / "none.csv",
        "few": partly(logs["small"], labelled, np.ones((*shape, 1))),
    }
    swept = rcjax.tuning.sweeps.sweep(everything, tmp_path / "out", cascades="labels", lam=[10.0, 1000.0])
    problems = dict(swept.logs.select("log", "problem").rows())
    assert problems["good"] is None
    for name, reason in (("bad", "2.5"), ("none", "none.csv: No such file"), ("few", "90 answers have no label")):
        assert reason in problems[name]
    assert swept.points.collect()["log"].unique().to_list() == ["good"]
    with pytest.raises(ValueError, match=r"no frontier of 'bad'.*2\.5"):
        swept.frontier("bad")


def test_a_sweep_without_a_usable_log_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no log can be used; none: .*none.csv: No such file"):
        rcjax.tuning.sweeps.sweep([tmp_path / "none.csv"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_draw_without_any_answer_of_a_model_fails_alone(logs, tmp_path):
    log = logs["small"]
    answered = np.array(log.answered)
    answered[2:, 1] = False  # two answers: a replicate in seven draws neither
    empty = {"logprob": np.nan, "correct": False, "query_cost": 0.0, "answered": False}
    cells = {name: np.where(answered, getattr(log, name), value) for name, value in empty.items()}
    sparse = dataclasses.replace(log, **cells).take(slice(None))
    swept = rcjax.tuning.sweeps.sweep({"sparse": sparse}, tmp_path, cascades="labels", lam=3, replicates=11)
    found = swept.points.collect()
    failed = found.filter(pl.col("status") == PointStatus.NO_DATA)
    assert 0 < failed["replicate"].n_unique() < 8
    nulls = failed.select("error", "cost", "cascade", "thresholds", "held_out_error").null_count().row(0)
    assert nulls == (failed.height,) * 5
    fine = found.filter(pl.col("status") < PointStatus.NO_DATA)
    assert fine["replicate"].min() == 0
    assert fine.select("error", "cost", "cascade").null_count().row(0) == (0,) * 3


@pytest.mark.thorough
def test_several_problems_at_a_time_find_what_each_alone_does(logs, tmp_path, monkeypatch, caplog):
    """As on an accelerator; samples and problems are filled up, each to what is solved at a time.

    Programs are compiled in threads, all together, and not again when they run.
    """
    options = {"cascades": {"labels": "labels", "pair": [MODELS[:2]]}, "lam": 3, "replicates": 2}
    alone = rcjax.tuning.sweeps.sweep(logs, tmp_path / "alone", **options).points.collect()
    monkeypatch.setattr("rcjax.tuning.sweeps.engines.problems_at_a_time", lambda *_: 4)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        together = rcjax.tuning.sweeps.sweep(logs, tmp_path / "together", **options).points.collect()
    logged = " ".join(record.getMessage() for record in caplog.records)  # of this thread
    assert (logged.count("Finished tracing run "), logged.count("XLA compilation of jit(run)")) == (4, 0)
    for name in ("error", "cost", "held_out_error", "held_out_cost"):
        assert together[name].is_null().equals(alone[name].is_null())
        np.testing.assert_allclose(together[name].drop_nulls(), alone[name].drop_nulls(), rtol=0, atol=1e-12)


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no sweep\.json"):
        rcjax.tuning.sweeps.Sweep(tmp_path).plan  # noqa: B018
    (tmp_path / "sweep.json").write_text(json.dumps({"format": "rcjax-policy"}))
    with pytest.raises(ValueError, match="format: must be 'rcjax-sweep'"):
        rcjax.tuning.sweeps.Sweep(tmp_path).plan  # noqa: B018
