"""Examples import only names that exist: in docstrings, pages and notebooks, whichever tier runs them."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"^[ \t]*from (rcjax[\w.]*) import (\([^)]*\)|[^\n#;]+)", re.MULTILINE)
#: Fewer imports than these would say that the pattern no longer finds them.
MIN_FOUND = {"docstrings": 40, "pages": 18, "notebooks": 8}


def docstrings() -> Iterator[tuple[str, str]]:
    """(place, text) of each docstring of the package."""
    for path in sorted((ROOT / "rcjax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = getattr(node, "name", "")
                yield f"{path.relative_to(ROOT)} {name}".strip(), ast.get_docstring(node) or ""


def pages() -> Iterator[tuple[str, str]]:
    """(place, text) of the README and each page of documentation."""
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "rcjax" / "docs").rglob("*.md"))):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def notebooks() -> Iterator[tuple[str, str]]:
    """(place, text) of each cell of code."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield str(path.relative_to(ROOT)), "".join(cell["source"])


def imports(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import from rcjax in a text, which may have the prompts of a doctest."""
    for found in IMPORT.finditer(re.sub(r"^[ \t]*(>>>|\.\.\.) ", "", text, flags=re.MULTILINE)):
        names = re.sub(r"#.*", "", found[2]).strip("() \t\n,")
        yield from ((found[1], re.split(r"\s", name.strip())[0]) for name in names.split(","))


def is_there(module: str, name: str) -> bool:
    """Return whether a module has a name, or is a package with a module of that name."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as problem:
        return not (problem.name or "").startswith("rcjax")  # a library of an extra may be absent
    return True


@pytest.mark.parametrize("texts", [docstrings, pages, notebooks])
def test_examples_import_only_names_that_exist(texts):
    found = [(place, module, name) for place, text in texts() for module, name in imports(text)]
    assert len(found) >= MIN_FOUND[texts.__name__]
    there = {(module, name): is_there(module, name) for _, module, name in {*found}}
    assert [f"{place}: {module}.{name}" for place, module, name in found if not there[module, name]] == []


def test_a_name_that_does_not_exist_is_found():
    text = """
    >>> from rcjax import tune, tunee
    >>> from rcjax.tuning import (
    ...     select_frontier as select,  # by labels
    ...     selection_frontier,
    ... )
    from rcjax.tunings import anything
    """
    assert [f"{module}.{name}" for module, name in imports(text) if not is_there(module, name)] == [
        "rcjax.tunee",
        "rcjax.tuning.selection_frontier",
        "rcjax.tunings.anything",
    ]
