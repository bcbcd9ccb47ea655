"""Sweeps on a Ray cluster of two nodes: a node lost, the sweep killed, and always the bytes of one device."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from helpers.ray_cluster import two_nodes

import rcjax
from rcjax.tuning.sweeps import engines

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]
MODELS = ("llama3.2-1b", "llama3.1-8b")
OPTIONS = {"cascades": "labels", "lam": 4, "replicates": 3, "batch": 2}
PARTS = 8
DRIVER = """
import json, sys
import jax
for name, value in json.loads(sys.argv[3]).items():
    jax.config.update(name, value)
from test_sweep_ray import OPTIONS, logs
import rcjax
from rcjax.tuning.sweeps import sweep
sweep(logs(), sys.argv[1], ray=sys.argv[2], progress=lambda *done: print(*done, flush=True), **OPTIONS)
"""


def logs():
    return {f"log{n}": rcjax.sample_log(n, seed=n).select(MODELS) for n in (40, 45, 50, 60)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, float64):
    """The files of the sweep by one device of this process."""
    return contents(
        rcjax.tuning.sweeps.sweep(logs(), tmp_path_factory.mktemp("alone"), devices=jax.devices()[:1], **OPTIONS).path
    )


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as started:
        yield started


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_sweep_that_is_killed_goes_on_and_a_node_that_is_killed_is_not_missed(alone, nodes, tmp_path):
    cluster, second = nodes
    settings = json.dumps({name: engines._jax_option(name) for name in engines._JAX_OPTIONS})
    command = [sys.executable, "-c", DRIVER, str(tmp_path), cluster.address, settings]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    driver = subprocess.Popen(command, cwd=Path(__file__).parent, env=_environment(), **pipes)
    assert any(line[0].isdecimal() and int(line.split()[0]) for line in driver.stdout)
    driver.send_signal(signal.SIGKILL)
    _, errors = driver.communicate()
    there = contents(tmp_path)
    assert 1 <= sum(name.startswith("parts/") for name in there) < PARTS, errors

    seen = []

    def progress(done, total):
        seen.append((done, total))
        if len(seen) == 2:  # one more batch is done: others are on their way
            cluster.remove_node(second, allow_graceful=False)

    rcjax.tuning.sweeps.sweep(logs(), tmp_path, ray=cluster.address, progress=progress, **OPTIONS)
    assert contents(tmp_path) == alone
    assert {(name, content) for name, content in there.items() if ".tmp" not in name} <= {*alone.items()}
    assert seen[0][0] > 0
    assert seen[-1] == (16, 16)


def test_a_failure_on_a_node_is_one_message(nodes, tmp_path, monkeypatch):
    import ray

    cluster, _ = nodes
    monkeypatch.setattr(engines, "version", lambda: "0.0.1")
    with pytest.raises(ValueError, match=r"^node .* has rcjax .*, this process has rcjax 0\.0\.1, jax .*: install the"):
        rcjax.tuning.sweeps.sweep(logs(), tmp_path, ray=cluster.address, **OPTIONS)
    monkeypatch.undo()
    monkeypatch.setattr("rcjax.tuning.sweeps.problems.Library.part", lambda *_: None)
    with pytest.raises(RuntimeError, match=r"^batch \d \(log log\d+\) failed on Ray: AttributeError: 'NoneType'.*$"):
        rcjax.tuning.sweeps.sweep(logs(), tmp_path, ray=cluster.address, **OPTIONS)
    assert not list(tmp_path.glob("parts/*"))
    monkeypatch.undo()
    monkeypatch.setattr("rcjax.tuning.sweeps.sweeping.write_table", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        rcjax.tuning.sweeps.sweep(logs(), tmp_path / "full", ray=cluster.address, **OPTIONS)
    assert not ray.is_initialized()


def full_disk(path, table):
    if path.parent.name == "fits":
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def _environment():
    tests = Path(__file__).parents[2]
    paths = [str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
