"""Modules that not every installation has. Standard library only."""

import importlib
from typing import Any


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
        raise ImportError(f"this needs {module.partition('.')[0]}: pip install 'rcjax[{extra}]'") from error
