"""Packages whose names are imported when they are first used."""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path


def exports(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """(`__getattr__`, `__dir__`, `__all__`) of a package, by the imports of its stub, which type checkers read too.

    Args:
        package: its `__name__`.
        file: its `__file__`; the stub is `__init__.pyi` beside it, of lines `from module import name as name`.

    Submodules are attributes too, as they would be had they been imported; the stub may list some for type checkers.

    >>> look_up, _, names = exports("rcjax", __import__("rcjax").__file__)
    >>> look_up("Policy").__name__, "Policy" in names
    ('Policy', True)
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    sources = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module not in (None, package)]
    homes = {alias.name: str(node.module) for node in sources for alias in node.names}

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
        return sorted({*vars(importlib.import_module(package)), *homes})

    return look_up, names, sorted(homes)
