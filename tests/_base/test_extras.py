"""What to type for a library that is missing: as rcjax is installed here."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rcjax._base import extras


def test_a_checkout_is_named_by_its_path_but_within_it(monkeypatch, tmp_path):
    checkout = Path(extras.__file__).parents[2]
    monkeypatch.chdir(checkout)
    assert extras.how_to_install("report") == "pip install -e '.[report]'"
    monkeypatch.chdir(tmp_path)
    assert extras.how_to_install("report") == f"pip install -e '{checkout}[report]'"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///home/me/my%20rcjax", "dir_info": {}}, "pip install '/home/me/my rcjax[run]'"),
        (
            {"url": "https://example.org/rcjax.git", "vcs_info": {"vcs": "git"}},
            "pip install 'rcjax[run] @ git+https://example.org/rcjax.git'",
        ),
        ({"url": "file:///tmp/rcjax-1.whl", "archive_info": {}}, "pip install 'rcjax[run]'"),
        ({}, "pip install 'rcjax[run]'"),
        (None, "pip install 'rcjax[run]'"),
    ],
)
def test_an_installed_copy_is_named_by_where_it_came_from(monkeypatch, tmp_path, origin, command):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    with monkeypatch.context() as patched:
        patched.setattr(extras, "__file__", str(tmp_path / "rcjax" / "_base" / "extras.py"))
        patched.setattr(metadata, "distribution", lambda name: Installed())
        assert extras.how_to_install("run") == command


def test_what_a_missing_library_needs_is_said_where_it_is_missing(tmp_path):
    program = "import sys; sys.modules['openai'] = None\nimport rcjax.serving.cascade"
    environment = {**os.environ, "PYTHONPATH": str(Path(extras.__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert ended.stderr.strip().endswith(f"pip install -e '{Path(extras.__file__).parents[2]}[run]'")
