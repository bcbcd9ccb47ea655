"""The programs behind the figures that we state: their methods are right, and the whole of them runs."""

import importlib
import itertools
import pkgutil
import sys

import jax
import numpy as np
import polars as pl
import pytest

import benchmarks
import rcjax
from benchmarks import make_measured, methods, record
from benchmarks.gateway import __main__ as gateway_race, servers
from benchmarks.gateway.load import Load
from benchmarks.methods import Answers, Curve

pytestmark = pytest.mark.usefixtures("float64")
#: Libraries of the extra "bench" that a program imports.
PEERS = {"benchmarks.copulas": ("pyvinecopulib",)}
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    confidence = rng.choice(np.linspace(0.1, 0.9, 9), (50, 3))
    return Answers(confidence, (rng.random((50, 3)) > confidence).astype(float), np.array([1.0, 3.0, 10.0]))


@pytest.mark.parametrize("name", [m.name for m in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")])
def test_every_program_starts(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for peer in PEERS.get(name, ()):
        pytest.importorskip(peer, reason="pip install '.[bench]'")
    module = importlib.import_module(name)
    if hasattr(module, "main"):
        with pytest.raises(SystemExit) as stop:
            module.main()
        assert stop.value.code == 0


def test_a_grid_counts_as_walking_through_the_queries_does(data):
    grids = [np.array([0.0, 0.1, 0.35, 0.5]), np.array([0.2, 0.9])]
    on_grid = methods.outcomes_on_grid(data, grids)
    for (i, first), (j, second) in itertools.product(enumerate(grids[0]), enumerate(grids[1])):
        wrong = cost = 0.0
        for confidence, mistakes in zip(data.confidence, data.wrong, strict=True):
            model = 0 if confidence[0] > first else 1 if confidence[1] > second else 2
            wrong, cost = wrong + mistakes[model], cost + data.cost[: model + 1].sum()
        walked = Curve(cost / 50, wrong / 50)
        alone = methods.outcomes(data, np.array([[first, second]]))
        for axis in ("cost", "error"):
            assert getattr(on_grid, axis)[i, j] == pytest.approx(getattr(walked, axis))
            assert getattr(alone, axis)[0] == pytest.approx(getattr(walked, axis))


@pytest.mark.thorough
def test_the_paper_from_a_folder_of_logs(tmp_path, monkeypatch):
    from benchmarks.paper import __main__ as paper

    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        log = rcjax.sample_log(120, seed=seed).select(MODELS[1:])
        frame = {
            "query": np.repeat(np.arange(120), 2),
            "model": list(MODELS[1:]) * 120,
            "logprob": np.asarray(log.logprob).ravel(),
            "correct": np.asarray(log.correct).ravel().astype(int),
            "cost": np.asarray(log.query_cost).ravel(),
        }
        pl.DataFrame(frame).write_csv(data / f"made_llama_{split}.csv")
    cheap = ("table1_performance", "table2_ablation", "table3_markov", "appendix_e_confident")
    monkeypatch.setattr(paper, "TABLES", {name: paper.TABLES[name] for name in cheap})
    command = ["paper", "--data", str(data), "--out", str(out), "--quick"]
    monkeypatch.setattr(sys, "argv", command)
    paper.main()
    index = (out / "index.md").read_text("utf-8")
    assert index.count("## ") == len(list(out.glob("*.md"))) - 1 + len(list(out.glob("*.png")))
    changes = pl.read_csv(out / "table7_summary.csv")
    assert changes["cascades"].to_list() == [1] * len(changes)
    made = {path: path.stat().st_mtime_ns for path in out.glob("*.csv")}
    (out / "table1_performance.csv").unlink()
    paper.main()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*.csv")}
    assert {path.name for path in made if made[path] != kept[path]} == {"table1_performance.csv"}
    assert (out / "index.md").read_text("utf-8") == index


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A program's `main`, run with some words: what it left in the folder of results."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")

    def run(main, *words):
        monkeypatch.setattr(sys, "argv", ["program", *words])
        record.run(main)
        return {path.name: path.read_text("utf-8") for path in (tmp_path / "results").glob("*")}

    return run


def test_a_recorded_run_keeps_what_it_prints_with_its_command_and_headlines(recorded, capsys, tmp_path):
    def main():
        record.headline("time", "3 s")
        print("| a table |")

    assert recorded(main) == {}
    (content,) = recorded(main, "--data", str(tmp_path / "logs"), "--splits", "5", "--record", "part").values()
    assert capsys.readouterr().out.count("| a table |") == 2  # it is shown too
    assert content.endswith("\n\n| what | figure |\n|---|---|\n| time | 3 s |\n\n| a table |\n")
    assert "--data DIR --splits 5\n" in content
    assert str(tmp_path) not in content
    assert f"jax {jax.__version__}" in content


def test_the_page_of_figures_is_made_of_the_results():
    text = make_measured.PAGE.read_text("utf-8")
    assert make_measured.page(text) == text, "run `python -m benchmarks.make_measured`"
    assert [path.name for path in record.RESULTS.glob("*.md") if f"results/{path.name})" not in text] == []
    assert len(text.split()) <= 1_200


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
@pytest.mark.parametrize("streamed", [0.0, 1.0])
def test_a_gateway_is_asked_by_so_many_clients_and_timed(streamed, tmp_path, monkeypatch):
    monkeypatch.chdir(record.RESULTS.parents[1])  # where the processes find the benchmarks
    with servers.upstream(tmp_path) as model:
        busy = model.busy()
        for _ in range(20):  # a busy machine lets few calls through, which take less than the kernel counts
            told = gateway_race.send(Load(model.port, "m", 4, 0.5, 0.02, streamed=streamed, left=0.2))
            if model.busy() > busy:
                break
        assert 0 < model.busy() - busy < 5
        assert servers.resident(model.pid) > 1e6
        assert servers.open_files(model.pid) > 3
    assert not told["errors"]
    assert told["left"] > 0
    assert len(told["added"]) == told["requests"] <= 4 * 0.5 / 0.01
    assert min(told["added"]) > -1.5  # not sooner than by the model's own time, which is right to a millisecond
    assert gateway_race.medians([gateway_race.Rate(1, 10), gateway_race.Rate(3, 10)]) == gateway_race.Rate(2, 10)
