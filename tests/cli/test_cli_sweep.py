"""`rcjax sweep`: a file of settings in, a folder of results out; one JSON document, or a few lines."""

import json

import polars as pl
import pytest
from helpers.command_line import rows_of, run, succeed, write_log

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep")
    for seed in range(2):
        write_log(path / f"log{seed}.csv", rows_of(seed, n=60))
    (path / "nightly.toml").write_text('logs = ["log*.csv", "none.csv"]\ncascades = "labels"\nlam = 4\n')
    return path


def test_logs_are_swept_and_a_second_call_finds_nothing_to_do(folder):
    told = json.loads(succeed("sweep", folder / "nightly.toml", "--json"))
    assert told["folder"] == str(folder / "nightly")
    assert told["logs"] == 2
    assert told["points"] == 8
    assert told["status"] == {"converged": 8}
    assert [each["log"] for each in told["left_out"]] == ["none"]
    parts = [path.stat().st_mtime_ns for path in folder.glob("nightly/parts/*")]
    result = run("sweep", folder / "nightly.toml")
    assert result.exit_code == 0
    assert "none.csv: No such file" in " ".join(result.stderr.split())
    assert "8 points of 2 logs" in result.stdout
    assert str(folder / "nightly") in result.stdout
    assert parts == [path.stat().st_mtime_ns for path in folder.glob("nightly/parts/*")]
    points = pl.read_parquet(folder / "nightly" / "parts" / "*.parquet")
    assert points["log"].unique().sort().to_list() == ["log0", "log1"]
    policy = rcjax.tuning.sweeps.Sweep(folder / "nightly").frontier("log1").policy(error_cost=0.01)
    assert set(policy.models) <= {"small", "middle", "large"}
    assert policy.expected["cost"] > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('logs = ["none.csv"]', "none.csv: No such file"),
        ('logs = ["log0.csv"]\nlam = 1', "lam: must be between 2 and"),
        ('logs = ["log0.csv"]\nlambda = 1', "lambda is not a setting of a sweep"),
    ],
)
def test_a_failed_sweep_is_reported_in_one_line(folder, content, message):
    (folder / "wrong.toml").write_text(content)
    result = run("sweep", folder / "wrong.toml")
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (folder / "wrong").exists()


def test_a_sweep_does_not_overwrite_its_logs(folder):
    (folder / "into").mkdir()
    log = folder / "into" / "logs.parquet"
    pl.read_csv(folder / "log0.csv").write_parquet(log)
    content = log.read_bytes()
    (folder / "over.toml").write_text('logs = ["into/logs.parquet"]')
    for out in (folder / "into", log, folder / "over.toml"):
        result = run("sweep", folder / "over.toml", "--out", out, "--json")
        assert result.exit_code == 2, (result.stderr, result.exception)
        assert "must not be the file of" in json.loads(result.stdout)["error"]["message"]
    assert log.read_bytes() == content
    assert sorted(path.name for path in (folder / "into").iterdir()) == ["logs.parquet"]
