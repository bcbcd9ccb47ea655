"""What a change asks for: the thorough tests of what it touches, and of what imports that."""

import pytest
from imports import arrows
from touched import EVERYTHING, paths_of

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
