"""Sweeps on several devices, and through SIGKILL: always the same results."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from helpers.sweep_worker import SETTINGS, SIZES

pytestmark = pytest.mark.thorough
WORKER = Path(__file__).parents[2] / "helpers" / "sweep_worker.py"
PROBLEMS = len(SIZES) * (SETTINGS["replicates"] + 1)
PARTS = PROBLEMS // SETTINGS["batch"]


def start(folder, cache, **more):
    command = [sys.executable, str(WORKER), str(folder), json.dumps({"cache": str(cache), **more})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(running):
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors


def points(folder):
    found = pl.read_parquet(folder / "parts" / "*.parquet")
    assert found.height == PROBLEMS * len(SETTINGS["cascades"]) * SETTINGS["lam"]
    return found.sort("log", "replicate", "cascades", "lam")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cache):
    """The folder of the sweep on one device, undisturbed."""
    folder = tmp_path_factory.mktemp("alone")
    finish(start(folder, cache))
    return folder


def assert_same(first, second):
    figures = ["error", "cost", "held_out_error", "held_out_cost"]
    assert first.drop(*figures, "thresholds", "bounds").equals(second.drop(*figures, "thresholds", "bounds"))
    for name in figures:
        assert (first[name] - second[name]).abs().max() <= 1e-12, name
    # What is nearest to a jump of the objective, a threshold beside ties, moves by rounding errors of the margins.
    assert (first["thresholds"].explode() - second["thresholds"].explode()).abs().max() <= 1e-9


def test_two_devices_find_what_one_does(alone, cache, tmp_path):
    finish(start(tmp_path, cache, devices=2))
    assert_same(points(alone), points(tmp_path))


def test_a_sweep_that_is_killed_goes_on_where_it_was(alone, cache, tmp_path):
    kept = {}
    for wanted in (1, PARTS - 1):
        running = start(tmp_path, cache)
        assert any(int(line.split()[0]) >= wanted * SETTINGS["batch"] for line in running.stdout)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        there = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*.parquet")}
        assert kept.items() <= there.items(), "what was there is neither done again nor lost"
        kept = there
    finish(start(tmp_path, cache))
    assert len(list(tmp_path.glob("parts/*"))) == PARTS
    for kind in ("parts", "fits"):
        for path in alone.glob(f"{kind}/*.parquet"):
            assert (tmp_path / kind / path.name).read_bytes() == path.read_bytes()
