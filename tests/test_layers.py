"""The house: packages in layers, each of which imports only from those before it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from imports import GROUPS, LAYERS, arrows, circles, imported, layer, modules, reached

MODULES = modules()
LIGHT = (
    *("rcjax.policy.ladder", "rcjax.policy.spec", "rcjax.policy.signals.signal"),
    *("rcjax.serving.call_log", "rcjax.serving.gateway.service", "rcjax.cli.serve"),
)
STANDARD = ("_base", "policy", "policy.signals")


def test_every_module_has_a_layer():
    assert {layer(name) for name in MODULES} == {*LAYERS}


def test_the_table_for_contributors_has_the_packages_in_their_order():
    text = (Path(__file__).parents[1] / ".github" / "CONTRIBUTING.md").read_text("utf-8")
    first_cells = re.findall(r"^\| ([*`][^|]*) \|", text, re.MULTILINE)
    rows = [
        row
        for group, packages in GROUPS.items()
        for row in (f"**{group}**", *(name.replace(".", "/") for name in packages))
    ]
    assert re.findall(r"\*\*.*?\*\*|[a-z_/]*[a-z_]", " ".join(first_cells)) == [*rows, "docs"]


def test_a_module_imports_from_its_layer_and_those_before_it():
    upward = [
        f"{path}:{line} imports rcjax.{target}"
        for name, path in sorted(MODULES.items())
        for target, line in imported(path, {*MODULES})
        if layer(target) not in {*LAYERS[: LAYERS.index(layer(name)) + 1]}
        and not (layer(name) == "cli" and target == "")  # the root's public names, as users have them
    ]
    assert upward == []


def test_no_two_modules_import_each_other():
    assert circles(arrows()) == []


@pytest.mark.parametrize("start", ["tuning.cross_validation", "tuning.candidate_scores"])
def test_candidates_by_the_labels_know_nothing_of_the_model_of_the_paper(start):
    reach, apart = reached(arrows(), start), ["copulas", "solving"]
    apart += ["logs"] if start == "tuning.candidate_scores" else []  # arrays alone
    assert [name for name in sorted(reach) if layer(name) in apart] == []


def test_a_search_by_the_labels_imports_no_copulas():
    line = "import sys, rcjax.tuning.tune; print([name for name in sys.modules if name.startswith('rcjax.copulas')])"
    assert subprocess.run([sys.executable, "-c", line], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if layer(name) in STANDARD))
def test_policies_and_the_service_import_the_standard_library_alone(name):
    targets = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            targets |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            targets.add((node.module or "").split(".")[0])
    assert targets <= {*sys.stdlib_module_names, "__future__", "rcjax"}


def test_no_test_replaces_a_private_name_of_ours():
    """A test replaces documented names only: a limit, or a step of an algorithm."""
    private = re.compile(r"""setattr\([^()"]*"(?:rcjax[\w.]*\.)?_[a-zA-Z]\w*\"""")
    texts = {path: path.read_text("utf-8") for path in Path(__file__).parent.rglob("*.py")}
    assert [f"{path}: {found}" for path, text in texts.items() for found in private.findall(text)] == []


@pytest.mark.parametrize("module", LIGHT)
def test_the_service_imports_without_numpy_and_jax(module):
    code = f"import sys, {module}; print([name for name in ('numpy', 'jax', 'polars') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
