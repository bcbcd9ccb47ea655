"""Whose thorough tests a change asks for: `python tests/touched.py [COMMIT]` prints their paths, for pytest.

What was touched since a commit; by default, in the commits of the last twelve hours before the newest one. A module
counts with those that import it directly, a page, a notebook or a benchmark with the tests that run it. With
CI_THOROUGH=1, or where the tests' own set-up changed, it is everything.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from imports import LAYERS, arrows, layer

TESTS = Path(__file__).parent
EVERYTHING = ["tests"]
HOURS = 12
#: Touched by the first part of a path: what runs it.
RUN_BY = {
    "benchmarks": "tests/test_benchmarks.py",
    "notebooks": "tests/test_notebooks.py",
    "docs": "tests/test_docs.py",
}
SET_UP = ("pyproject.toml", "tests/conftest.py", "tests/touched.py", ".ci/run")


def git(*arguments: str) -> str:
    """Return the output of git."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=TESTS.parent).stdout


def changed_files(since: str | None) -> list[str] | None:
    """The files that were touched; None where nobody can tell."""
    try:
        if since is None:
            newest = int(git("log", "-1", "--format=%ct"))
            since = git("rev-list", "-1", f"--before={newest - HOURS * 3600}", "HEAD").strip()
        return git("diff", "--name-only", since, "HEAD").split() if since else None
    except (OSError, subprocess.CalledProcessError):
        return None


def paths_of(files: Iterable[str], graph: dict[str, set[str]]) -> list[str]:
    """The folders and files of tests whose thorough tier the files ask for.

    Args:
        files: paths below the top of the repository.
        graph: module → the modules that it imports, by names below rcjax.
    """
    packages: set[str] = set()
    paths: set[str] = set()
    for file in files:
        first, *rest = Path(file).with_suffix("").parts
        if file in SET_UP:
            return EVERYTHING
        if first == "rcjax" and file.endswith(".py"):
            module = ".".join(rest).removesuffix(".__init__")
            users = {name for name, targets in graph.items() if module in targets}
            packages |= {layer(name) for name in (module, *users)}
        elif first == "tests":
            helper = len(rest) == 1 and not rest[0].startswith("test_")
            if helper:
                return EVERYTHING
            paths.add(file if len(rest) == 1 else str(Path("tests", *rest).parent))
        elif run := RUN_BY.get(rest[0] if first == "rcjax" and len(rest) > 1 else first):
            paths.add(run)
    for package in (name.replace(".", "/") for name in packages & {*LAYERS}):
        wanted = f"tests/{package}", f"tests/test_{package}.py"
        paths |= {path for path in wanted if (TESTS.parent / path).exists()}
    return sorted(paths)


def main() -> None:
    """Print the paths, in one line."""
    files = None if os.environ.get("CI_THOROUGH") else changed_files(sys.argv[1] if len(sys.argv) > 1 else None)
    print(*(EVERYTHING if files is None else paths_of(files, arrows())))


if __name__ == "__main__":
    main()
