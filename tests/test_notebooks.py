from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
TIMEOUT = 300  # seconds for one cell: a hang, not a slow machine


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch, programs):
    """In a fresh kernel and an empty folder, so that what is imported is the installed package."""
    # What one run has compiled serves the next one, as in the rest of the suite.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(programs / "notebooks"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources=resources).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path):
    cells = code_cells(path)
    assert cells
    assert [cell.source for cell in cells if cell.outputs or cell.execution_count is not None] == []


def test_a_family_takes_ten_lines_at_most():
    (path,) = (path for path in NOTEBOOKS if path.stem == "write_your_own_copula")
    source = next(cell.source for cell in code_cells(path) if "class FGM(" in cell.source)
    assert source.startswith("class FGM(rcjax.copulas.Copula):")
    assert len(source.splitlines()) <= 10
