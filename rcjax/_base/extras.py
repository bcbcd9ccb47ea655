"""What is installed: the version, modules that not every installation has, and the command for them. Standard library
only.
"""

import importlib
import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any


@cache
def version() -> str:
    """The version, such as `"0.1.0"`; "unknown" where the package runs without having been installed."""
    from importlib import metadata  # which takes long to import

    try:
        return metadata.version("rcjax")
    except metadata.PackageNotFoundError:
        return "unknown"


def required(module: str, extra: str) -> Any:
    """A module of an extra; ImportError says which extra where it is not installed.

    >>> required("json", extra="posterior").dumps([1])
    '[1]'
    >>> required("nothing.at.all", extra="posterior")
    Traceback (most recent call last):
    ImportError: this needs nothing: pip install ...[posterior]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module.partition('.')[0]}: {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """The command that adds an extra to rcjax as it is installed here: from a checkout, a repository, or an index.

    >>> how_to_install("report").partition("[")[2]
    "report]'"
    """
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e {_with_extra(checkout, extra)}"
    origin = _origin()
    address = origin.get("url", "")
    if "dir_info" in origin and address.startswith("file:"):
        from urllib.request import url2pathname  # which takes long to import

        return f"pip install {_with_extra(Path(url2pathname(address.removeprefix('file://'))), extra)}"
    if "vcs_info" in origin:
        return f"pip install 'rcjax[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{address}'"
    return f"pip install 'rcjax[{extra}]'"


def _with_extra(checkout: Path, extra: str) -> str:
    """A checkout with an extra, as a shell takes it: by its path, but where one stands in it."""
    return shlex.quote(f"{'.' if checkout == Path.cwd() else checkout}[{extra}]")


def _origin() -> dict[str, Any]:
    """Where pip took rcjax from, as PEP 610 has it; empty if that was an index, or nobody knows."""
    from importlib import metadata

    try:
        return json.loads(metadata.distribution("rcjax").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
