"""Where a sweep is solved: what is told where there is no Ray or no cluster."""

import json
import socket
import sys

import pytest
from helpers.command_line import rows_of, run, write_log

import rcjax
from rcjax._base.extras import how_to_install

pytestmark = pytest.mark.usefixtures("own_settings")


def test_without_ray_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_log(tmp_path / "log.csv", rows_of(0, n=60))
    (tmp_path / "night.toml").write_text('logs = ["log.csv"]')
    result = run("sweep", tmp_path / "night.toml", "--ray", "auto", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["message"] == f"--ray needs ray: {how_to_install('ray')}"
    with pytest.raises(ImportError, match=r"this needs ray: pip install .*\[ray\]'"):
        rcjax.tuning.sweeps.sweep([tmp_path / "log.csv"], tmp_path / "out", ray="auto")


def test_a_missing_cluster_is_one_message(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rcjax[ray]'")
    with pytest.raises(ValueError, match="a cluster has devices of its own: leave out devices"):
        rcjax.tuning.sweeps.sweep([tmp_path / "none.csv"], tmp_path / "out", ray="auto", devices=[])
    with socket.socket() as taken:
        taken.bind(("localhost", 0))  # bound, and nobody listens
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"no Ray cluster at {address}: start one"):
            rcjax.tuning.sweeps.sweep([tmp_path / "none.csv"], tmp_path / "out", ray=address)
    assert not (tmp_path / "out").exists()
