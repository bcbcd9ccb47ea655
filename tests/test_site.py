"""The site of all pages: one command builds it, links lead somewhere, and what lies outside the folder is in it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import make_site
from benchmarks.make_site import DOCS, RESULTS, ROOT, with_links_of_the_site

#: A Python that has mkdocs-material: this one, or that of another environment.
PYTHON = os.environ.get("RCJAX_MKDOCS", sys.executable if importlib.util.find_spec("material") else "")


def test_links_become_those_of_the_site():
    of_readme, of_limits = (
        "[a](rcjax/docs/limits.md#odd) [c](LICENSE)",
        "[a](../../README.md) [b](#odd) [c](https://x.org)",
    )
    cases = {
        ("index.md", of_readme): "[a](limits.md#odd) [c](LICENSE)",
        ("limits.md", of_limits): "[a](index.md) [b](#odd) [c](https://x.org)",
        ("method.md", "[a](../../benchmarks/results/race.md)"): "[a](results/race.md)",
        ("contributing.md", "[a](../rcjax/docs/python.md)"): "[a](python.md)",
    }
    assert {case: with_links_of_the_site(text, uri) for case in cases for uri, text in [case]} == cases


def test_every_page_is_in_the_menu():
    menu = make_site.CONFIG.read_text("utf-8").partition("\nnav:")[2]
    pages = [path.relative_to(ROOT / DOCS).as_posix() for path in (ROOT / DOCS).glob("**/*.md")]
    assert [page for page in pages if page not in menu] == []


@pytest.mark.skipif(not PYTHON, reason="no mkdocs-material: pip install '.[docs]', or name a Python by RCJAX_MKDOCS")
def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path):
    command = [PYTHON, "-m", "benchmarks.make_site", "--out", str(tmp_path / "site")]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = Path(tmp_path / "site")
    assert {"index.html", "glossary.html", "reference.html"} <= {path.name for path in site.glob("*.html")}
    assert len(list((site / "results").glob("*.html"))) == len(list((ROOT / RESULTS).glob("*.md")))
    fetched = re.findall(r'(?:src|<link[^>]*href)="(https?://[^"]*)"', (site / "index.html").read_text("utf-8"))
    assert fetched == []
