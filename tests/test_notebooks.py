"""Notebooks run, and show what they print."""

import nbformat
import pytest
from followed_pages import words_alone

from benchmarks.make_notebooks import NOTEBOOKS, executed


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    """Return the output of a cell without its figures, which depend on versions and machines a little."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return words_alone("".join(texts)).replace("-#", "#")  # what is next to nothing has any sign


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_the_output_that_it_shows(path, tmp_path, monkeypatch, programs):
    """Run in a fresh kernel and an empty folder, to import the installed package."""
    # What one run has compiled serves the next one, as in the rest of the suite.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(programs / "notebooks"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    run, stored = executed(path, tmp_path), nbformat.read(path, as_version=4)
    assert [printed(cell) for cell in code_cells(run)] == [printed(cell) for cell in code_cells(stored)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(path):
    """It ran from top to bottom without an error, and is small enough to be looked at."""
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert {output.output_type for cell in cells for output in cell.outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert path.stat().st_size < 300_000


def test_a_family_takes_ten_lines_at_most():
    (path,) = (path for path in NOTEBOOKS if path.stem == "write_your_own_copula")
    cells = code_cells(nbformat.read(path, as_version=4))
    source = next(cell.source for cell in cells if "class MyFGM(" in cell.source)
    assert source.startswith("class MyFGM(rcjax.copulas.Copula):")
    assert len(source.splitlines()) <= 10
