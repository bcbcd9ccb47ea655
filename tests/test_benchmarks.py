"""The programs behind the figures that we state: their methods are right, and the whole of them runs."""

import importlib
import pkgutil
import sys

import jax
import numpy as np
import polars as pl
import pytest

import benchmarks
import rcjax
from benchmarks import make_measured, record
from benchmarks.methods import Answers

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
def test_every_benchmark_starts(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for peer in PEERS.get(name, ()):
        pytest.importorskip(peer, reason="pip install '.[bench]'")
    module = importlib.import_module(name)
    if hasattr(module, "main"):
        with pytest.raises(SystemExit) as stop:
            module.main()
        assert stop.value.code == 0


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
