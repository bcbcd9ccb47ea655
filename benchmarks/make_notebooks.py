"""Run the notebooks, and keep what their cells print and draw.

    python -m benchmarks.make_notebooks [NAME ...]

Each notebook runs in a fresh kernel and an empty folder. Warnings of libraries are left out.
"""

import argparse
import tempfile
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIMEOUT = 900  # seconds for one cell: a hang, not a slow machine


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook as it is after all its cells ran in a folder."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Run all notebooks, or those of these names, and store what they print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    for path in NOTEBOOKS:
        if path.stem in (names or [path.stem]):
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(executed(path, Path(folder)), path)
            print(path.name, flush=True)


if __name__ == "__main__":
    main()
