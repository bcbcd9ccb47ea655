"""Lazy imports: public names of packages, and modules of extras, which may not be installed. Standard library only."""

import ast
import importlib
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rcjax._base.files import print_lines


@cache
def version() -> str:
    """Return rcjax's version, such as `"0.1.0"`; "unknown" if the package is not installed."""
    from importlib import metadata  # here: its import is slow

    try:
        return metadata.version("rcjax")
    except metadata.PackageNotFoundError:
        return "unknown"


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra; ImportError names the extra if the module is missing.

    >>> import_extra("json", extra="posterior").dumps([1])
    '[1]'
    >>> import_extra("nothing.at.all", extra="posterior")
    Traceback (most recent call last):
    ImportError: this needs nothing: pip install 'rcjax[posterior]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module.partition('.')[0]}: {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra to an installed rcjax, whatever its origin: pip keeps the package itself.

    >>> how_to_install("report")
    "pip install 'rcjax[report]'"
    """
    return f"pip install 'rcjax[{extra}]'"


def requirements(*extras: str) -> list[str]:
    """List the requirements of some extras as lines for pip, without the requirements of rcjax itself.

    A service needs neither JAX nor numpy nor polars, and packaging has no extras that leave requirements out.
    Raises ValueError for an unknown extra, and LookupError if rcjax is not installed.

    >>> [line.partition(">")[0] for line in requirements("objectives")]
    ['optax']
    >>> requirements("sevre")
    Traceback (most recent call last):
    ValueError: rcjax has no extra named sevre: see pyproject.toml
    """
    from importlib import metadata

    package = metadata.metadata("rcjax")
    unknown = [extra for extra in extras if extra not in (package.get_all("Provides-Extra") or ())]
    if unknown:
        raise ValueError(f"rcjax has no extra named {', '.join(unknown)}: see pyproject.toml")
    lines: dict[str, None] = {}  # an ordered set
    for line in package.get_all("Requires-Dist") or ():
        requirement, _, marker = line.partition(";")
        match = re.fullmatch(r"\s*(?:(.*) and )?extra == ['\"](.+)['\"]", marker)
        if match and match[2] in extras:
            lines[f"{requirement.strip()}; {match[1]}" if match[1] else requirement.strip()] = None
    return list(lines)


def print_requirements(extras: str) -> int:
    """Print the requirements of extras, whose names have commas between them; return the exit status.

    They are printed before typer is installed.
    """
    try:
        lines = requirements(*filter(None, map(str.strip, extras.split(","))))
    except (ValueError, LookupError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return print_lines(lines)


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return (`__getattr__`, `__dir__`, `__all__`) of a package, from the imports of its stub.

    Args:
        package: `__name__` of the package.
        file: `__file__` of the package; the stub is `__init__.pyi` beside it, with lines `from module import name as
            name`.

    Submodules are attributes too, as if they had been imported; the stub may list some for type checkers.

    >>> look_up, _, names = lazy_exports("rcjax", __import__("rcjax").__file__)
    >>> look_up("Policy").__name__, "Policy" in names
    ('Policy', True)
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    listed = {alias.name: str(node.module) for node in imports for alias in node.names}
    homes = {name: module for name, module in listed.items() if module != package}

    def look_up(name: str) -> object:
        if home := homes.get(name):
            value = getattr(importlib.import_module(home), name)
            vars(importlib.import_module(package))[name] = value
            return value
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    def names() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *listed})

    return look_up, names, sorted(homes)
