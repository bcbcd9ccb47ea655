"""The command line in real processes: what goes to which stream, exit codes, the cache of programmes, imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import rows_of, write_folder, write_log

import rcjax
from rcjax.cli.console import COMPILING

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the logs of real LLMs are not at {DATA}")


@pytest.fixture(scope="module", autouse=True)
def _one_cache(programs):
    """The processes use the programs that other tests have compiled, as in conftest, without optimisations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(programs))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield


@pytest.fixture
def as_users_have_it(monkeypatch):
    """Programmes are compiled as for users, and kept where rcjax keeps them."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("logs"))


def quiet(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    """The same without the lines of progress that a slow machine shows."""
    progress = (" so far\n", f"{COMPILING}\n")
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.endswith(progress))
    return done


def process(*arguments, **variables) -> subprocess.CompletedProcess:
    environment = {**os.environ, "COLUMNS": "80", **{name: str(value) for name, value in variables.items()}}
    command = [sys.executable, "-c", "import rcjax.cli; rcjax.cli.main()", *map(str, arguments)]
    return quiet(subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300))


@pytest.mark.parametrize(
    ("line", "heavy", "shown"),
    [
        ("--version", ("typer",), f"rcjax {rcjax.__version__}"),
        ("--help", ("jax", "numpy", "polars", "scipy", "rcjax.policy", "rcjax.cli.tune"), "For researchers"),
        ("tune --help", ("jax", "numpy", "polars", "scipy", "rcjax.tuning", "rcjax.cli.replays"), "--budget"),
    ],
)
def test_help_imports_neither_jax_nor_numpy(line, heavy, shown):
    names = f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    code = f"import atexit, sys; atexit.register(lambda: {names}); import rcjax.cli; rcjax.cli.main()"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert shown in done.stdout


@pytest.mark.thorough
def test_a_process_prints_nothing_but_json(folder):
    done = process("tune", folder / "holes.csv", "--no-bands", "--task", "choice", "--json")
    assert done.returncode == 0
    json.loads(done.stdout)
    gaps, figures = done.stderr.splitlines()
    assert gaps.startswith("warning: holes.csv: 268 of 384 queries have an answer of every")
    assert "that every model answered; the others only calibrate" in figures


@needs_data
@pytest.mark.thorough
@pytest.mark.parametrize(("benchmark", "task"), [("mmlu", "choice"), ("triviaqa", "generation")])
@pytest.mark.usefixtures("as_users_have_it")
def test_public_logs_are_tuned_and_evaluated(tmp_path, benchmark, task):
    policy, cache = tmp_path / "policy.json", tmp_path / "cache"
    prices = ["--prices", DATA / "prices.toml"]
    tune = ["tune", DATA / f"{benchmark}_llama_train.csv", *prices, "--task", task, "--json"]
    tune += ["--budget", "100/M", "--out", policy]
    programs = []
    for _ in range(2):
        done = process(*tune, RCJAX_CACHE_DIR=cache)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        programs.append({path.name for path in cache.rglob("*") if path.is_file()})
    assert programs[0]
    assert programs[1] == programs[0], "the second run should find its programs compiled"
    points = json.loads(done.stdout)["frontier"]
    cost, error = (np.array([point[name] for point in points])[::-1] for name in ("cost", "error"))
    assert len(points) > 2
    slopes = np.diff(error) / np.diff(cost)  # of a hull's corners, from cheap to dear
    assert (slopes < 0).all()
    assert (np.diff(slopes) > 0).all()
    done = process("evaluate", policy, DATA / f"{benchmark}_llama_test.csv", "--json", RCJAX_CACHE_DIR=cache)
    seen = json.loads(done.stdout)
    assert seen["cost"] > 0
    assert abs(seen["error"] - seen["predicted"]["error"]) < 0.15


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("--help | head -1", 0, ""),
        ("tune --help | head -1", 0, ""),
        ("tune --no-bands train.csv | head -1", 0, ""),
        ("check policy.json dear.csv --no-retuning | head -1", 1, ""),
        ("--help >&-", 0, ""),
        ("--version >&-", 0, ""),
        ("--version > /dev/full", 1, "error: standard output: No space left on device\n"),
        ("--requirements serve > /dev/full", 1, "error: standard output: No space left on device\n"),
        ("tune train.csv --no-bands --json > /dev/full", 1, "error: standard output: No space left on device\n"),
        ("--help > /dev/full", 1, "error: standard output: No space left on device\n"),
        ("tune none.csv >&-", 1, "error: none.csv: No such file or directory\n"),
        ("tune none.csv 2>&-", 1, ""),
        ("tune none.csv 2> /dev/full", 1, ""),
        ("check none.json none.csv --json > /dev/full", 2, "error: none.json: No such file or directory\n"),
    ],
)
def test_closed_and_full_streams_end_a_command_in_one_line(line, status, message, folder):
    if "policy.json" in line:
        policy = rcjax.tune(rcjax.read_log(folder / "train.csv"), error_cost=0.001, intervals=False).policy
        policy.save(folder / "policy.json")
        write_log(folder / "dear.csv", [(*row[:4], 3 * row[4], *row[5:]) for row in rows_of(seed=1)])
    script = f'{sys.executable} -c "import rcjax.cli; rcjax.cli.main()" {line}'
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTHONUNBUFFERED", None)  # Python flushes what is left in its buffers at the end
    command = ["bash", "-o", "pipefail", "-c", script]
    done = quiet(subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment))
    assert (done.returncode, done.stderr) == (status, message)
