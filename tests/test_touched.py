"""What a change asks for: the thorough tests of what it touches, and of what imports that."""

import subprocess
import sys

import pytest
from imports import arrows
from touched import EVERYTHING, TESTS, changed_files, paths_of

GRAPH = {
    "policy.policy": set(),
    "policy.files": {"policy.policy"},
    "logs.log": {"policy.policy"},
    "cli.tune": {"logs.log"},
}


@pytest.mark.parametrize(
    ("files", "paths"),
    [
        (["rcjax/policy/policy.py"], ["rcjax/logs", "rcjax/policy", "tests/logs", "tests/policy"]),
        (["rcjax/logs/log.py"], ["rcjax/cli", "rcjax/logs", "tests/cli", "tests/logs"]),
        (["rcjax/cli/tune.py", "README.md"], ["rcjax/cli", "tests/cli"]),
        (["rcjax/testing.py"], ["tests/test_testing.py"]),
        (["tests/tuning/test_tune.py", "tests/test_docs.py"], ["tests/test_docs.py", "tests/tuning"]),
        (["rcjax/docs/method.md", "notebooks/a.ipynb"], ["tests/test_docs.py", "tests/test_notebooks.py"]),
        (["tests/sampled_logs.py"], EVERYTHING),
        (["tests/conftest.py"], EVERYTHING),
    ],
)
def test_paths_of_a_change(files, paths):
    assert paths_of(files, GRAPH) == paths


def test_the_graph_is_that_of_the_package():
    assert "tests/copulas" in paths_of(["rcjax/copulas/base.py"], arrows())


def test_where_nobody_can_tell_it_is_everything():
    assert changed_files("no-such-commit") is None


def test_a_run_of_few_minutes_says_what_it_did_not_begin():
    options = ["-q", "-p", "no:cacheprovider", "--minutes", "1e-9"]
    line = [sys.executable, "-m", "pytest", *options, str(TESTS / "test_misses.py")]
    done = subprocess.run(line, capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout
    assert "not begun within 1e-09 minutes (--minutes)" in done.stdout
    assert "passed" not in done.stdout
