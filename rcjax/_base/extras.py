"""What is installed: the version, modules that not every installation has, and the command for them. Standard library
only.
"""

import importlib
from functools import cache
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
    ImportError: this needs nothing: pip install 'rcjax[posterior]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module.partition('.')[0]}: {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """The command that adds an extra to rcjax, wherever it was installed from: pip keeps what is there.

    >>> how_to_install("report")
    "pip install 'rcjax[report]'"
    """
    return f"pip install 'rcjax[{extra}]'"
