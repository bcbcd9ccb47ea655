"""Build the pages of documentation as a site: `site/`, to open in a browser, or on a server, which its search needs.

    pip install '.[docs]'
    python -m benchmarks.make_site

mkdocs-material builds the site (benchmarks/mkdocs.yml). The functions here are hooks of MkDocs, which add pages from
outside rcjax/docs: the README as the first page, the notebooks, and the files of results. A broken link ends the build.
"""

import argparse
import base64
import posixpath
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "benchmarks" / "mkdocs.yml"
DOCS, RESULTS, NOTEBOOKS = "rcjax/docs", "benchmarks/results", "notebooks"
#: Pages from outside the folder of documentation, by their place in the repository.
MOVED = {
    "README.md": "index.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    ".github/SECURITY.md": "security.md",
    "LICENSE": "LICENSE",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
FORMULA = re.compile(r"(\$\$?)(.+?)\1", re.DOTALL)
PICTURE = re.compile(r'<picture>.*?srcset="([^"]+)".*?alt="([^"]+)" src="([^"]+)".*?</picture>', re.DOTALL)


def place_in_site(path: str) -> str:
    """Where a file of the repository lies in the site.

    >>> place_in_site("rcjax/docs/limits.md"), place_in_site("README.md"), place_in_site("benchmarks/results/speed.md")
    ('limits.md', 'index.md', 'results/speed.md')
    >>> place_in_site("notebooks/quickstart.ipynb")
    'notebooks/quickstart.md'
    """
    if path in MOVED:
        return MOVED[path]
    if path.startswith(f"{NOTEBOOKS}/"):
        return posixpath.splitext(path)[0] + ".md"
    return f"results/{posixpath.basename(path)}" if path.startswith(RESULTS) else posixpath.relpath(path, DOCS)


def place_in_repository(uri: str) -> str:
    """Where a file of the site lies in the repository: the other way round."""
    back = {site: path for path, site in MOVED.items()}
    if uri in back:
        return back[uri]
    if uri.startswith(f"{NOTEBOOKS}/"):
        return posixpath.splitext(uri)[0] + ".ipynb"
    return f"{RESULTS}/{posixpath.basename(uri)}" if uri.startswith("results/") else f"{DOCS}/{uri}"


def with_links_of_the_site(text: str, uri: str) -> str:
    """A page's Markdown, its links as they are within the site; a picture for light and dark as two.

    >>> with_links_of_the_site("[limits](rcjax/docs/limits.md#odd)", "index.md")
    '[limits](limits.md#odd)'
    """
    here = place_in_repository(uri)

    def moved(match: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1]))
        return posixpath.relpath(place_in_site(path), posixpath.dirname(uri) or ".")

    text = PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", text)
    return LINK.sub(moved, text)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown, with what it prints and draws as it is stored, and its formulas as MathML."""
    import nbformat
    from latex2mathml.converter import convert
    from nbconvert import MarkdownExporter

    def drawn(formula: re.Match) -> str:
        if formula[1] == "$$":
            return convert(formula[2].strip(), display="block")
        return f"<span>{convert(formula[2])}</span>"  # else one that begins a line is a paragraph of its own

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = FORMULA.sub(drawn, cell.source)
    text, about = MarkdownExporter().from_notebook_node(notebook)
    for name, data in about["outputs"].items():
        text = text.replace(f"({name})", f"(data:image/png;base64,{base64.b64encode(data).decode()})")
    return text


def on_files(files, config):
    """Hook of MkDocs: the files from outside the folder of documentation."""
    from mkdocs.structure.files import File, InclusionLevel

    outside = [*MOVED, *(f"{RESULTS}/{path.name}" for path in sorted((ROOT / RESULTS).glob("*.md")))]
    for path in outside:
        file = File.generated(config, place_in_site(path), content=(ROOT / path).read_text("utf-8"))
        if path.startswith(RESULTS):  # they are reached from the page of what was measured
            file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        uri = place_in_site(f"{NOTEBOOKS}/{path.name}")
        files.append(File.generated(config, uri, content=notebook_page(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Hook of MkDocs: the links of a page."""
    return with_links_of_the_site(markdown, page.file.src_uri)


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "site", metavar="FOLDER", help="default: site")
    out = parser.parse_args().out.resolve()
    command = ["mkdocs", "build", "--strict", "--config-file", str(CONFIG), "--site-dir", str(out)]
    built = subprocess.run([sys.executable, "-m", *command])
    if built.returncode:
        sys.exit("the site was not built: see above, and pip install '.[docs]' where mkdocs is missing")
    print(f"open {out / 'index.html'}, or with its search: python -m http.server --directory {out}")


if __name__ == "__main__":
    main()
