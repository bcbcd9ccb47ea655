"""The package: what it exports, whatever is imported before."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import rcjax


def module_names() -> list[str]:
    return [found.name for found in pkgutil.walk_packages(rcjax.__path__, "rcjax.")]


def test_every_public_name_is_there_and_no_module_takes_its_place():
    """Importing a submodule binds it in its package, over whatever bore the name there."""
    modules = {*module_names()}
    packages = [found.name for found in pkgutil.walk_packages(rcjax.__path__, "rcjax.") if found.ispkg]
    for package in ("rcjax", *packages):
        value = importlib.import_module(package)
        for name in getattr(value, "__all__", ()):
            assert getattr(value, name) is not None
            assert f"{package}.{name}" not in modules


@pytest.mark.thorough
def test_replay_is_the_function_before_and_after_everything_is_imported():
    script = f"""
import importlib, json, rcjax
before = type(rcjax.replay).__name__
for name in {module_names()}:
    try:
        importlib.import_module(name)
    except ImportError as missing:  # of an extra
        if "pip install " not in str(missing):
            raise
from rcjax import replay
print(json.dumps([before, type(rcjax.replay).__name__, type(replay).__name__, replay.__module__]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout) == ["function", "function", "function", "rcjax.tuning.replaying.replay"]


def test_packages_are_listed_and_helpers_are_not():
    assert {"bayes", "copulas", "tune"} <= {*dir(rcjax)}
    assert "lazy_exports" not in dir(rcjax)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(rcjax, "replays")
