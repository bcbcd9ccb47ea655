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
    for package in ("rcjax", *map("rcjax.{}".format, rcjax.PACKAGES)):
        value = importlib.import_module(package)
        for name in value.__all__:
            assert getattr(value, name) is not None
            assert f"{package}.{name}" not in modules


def test_the_top_has_what_most_programs_need_and_says_where_the_rest_is_now():
    assert len(rcjax.__all__) <= 30
    for package, names in rcjax.PACKAGES.items():
        home = importlib.import_module(f"rcjax.{package}")
        assert {*names} <= {*home.__all__}
        for name in names:
            with pytest.warns(DeprecationWarning, match=rf"^rcjax\.{name} is rcjax\.{package}\.{name} now$"):
                assert getattr(rcjax, name) is getattr(home, name)


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
    assert json.loads(done.stdout) == ["function", "function", "function", "rcjax.replaying.replay"]


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(rcjax, "replays")


def test_a_name_that_is_gone_says_what_to_use_instead():
    with pytest.raises(
        AttributeError, match=r"rcjax.solve_expected is gone: .* use rcjax.tune, or rcjax.bayes.credible"
    ):
        rcjax.solve_expected  # noqa: B018 - it is looked up
    assert "solve_expected" not in dir(rcjax)


def test_what_was_removed_says_what_does_its_work():
    for name in ("Solver", "export_solver", "load_solver"):
        with pytest.raises(AttributeError, match=rf"rcjax\.{name} .* is gone: .*keep what they compile.*cache_dir$"):
            getattr(rcjax, name)
        assert name not in dir(rcjax)
