"""Searches by the model of confidences alone say in a line that what was answered is not used."""

import numpy as np
import polars as pl
import pytest
from agreement_logs import MODELS, make_log
from command_line import run

pytestmark = pytest.mark.usefixtures("own_settings")
LINE = "--error-cost", "0.001", "--no-bands", "--json"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(a log with answers, the same without)."""
    log, folder = make_log(60, 0.0, seed=0), tmp_path_factory.mktemp("unused")
    columns = {"query": np.repeat(np.arange(log.n_queries), 3), "model": np.tile(MODELS, log.n_queries)}
    figures = {"logprob": log.logprob, "correct": np.asarray(log.correct).astype(int), "cost": log.query_cost}
    plain = pl.DataFrame(columns | {name: np.asarray(values).ravel() for name, values in figures.items()})
    plain.write_csv(folder / "plain.csv")
    answers = pl.Series([f"said {code}" for code in np.asarray(log.answer).ravel()])
    plain.with_columns(answer=answers).write_csv(folder / "log.csv")
    return folder / "log.csv", folder / "plain.csv"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cascade",
    [
        ",".join(MODELS),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("small,large", "all", "full", "adaptive", None)),
    ],
)
def test_a_cascade_that_is_asked_for(cascade, files):
    options = [] if cascade is None else ["--cascade", cascade]
    with_answers, without = (run("tune", file, *LINE, *options) for file in files)
    assert with_answers.exit_code == without.exit_code == 0
    said = [line for line in with_answers.stderr.splitlines() if "not used" in line]
    advice = f"--cascade {cascade} does not compare answers, and the default search does: leave out --cascade"
    assert said == ([] if cascade is None else [f"warning: what was answered is not used: {advice}"])
    assert "not used" not in without.stderr
    if cascade is not None:
        assert "agreements" not in with_answers.stdout


@pytest.mark.thorough
def test_a_sweep(files, tmp_path):
    logs, plain = ", ".join(f'"{file}"' for file in files), files[1]
    (tmp_path / "both.toml").write_text(f'logs = [{logs}]\nlam = 3\nout = "both"\n')
    swept = run("sweep", tmp_path / "both.toml")
    assert swept.exit_code == 0, swept.stderr
    assert swept.stderr.count("what was answered in 1 log is not used: a sweep is of confidences alone") == 1
    (tmp_path / "one.toml").write_text(f'logs = ["{plain}"]\nlam = 3\nout = "one"\n')
    assert "answered" not in run("sweep", tmp_path / "one.toml").stderr
