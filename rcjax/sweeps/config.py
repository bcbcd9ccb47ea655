"""The file of a sweep: TOML, with the arguments of `sweep` by their names."""

from __future__ import annotations

import glob
import inspect
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rcjax._base.arguments import instance
from rcjax._base.codec import frozen
from rcjax._base.json_checks import choice
from rcjax.logs.errors import near
from rcjax.logs.prices import read_prices
from rcjax.sweeps.problems import check_settings
from rcjax.sweeps.sweeping import sweep

_NOT_IN_FILES = {"devices", "progress", "on", "address"}  # how to sweep, not what over
TASKS = ("generation", "choice")


def read_sweep(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `sweep` that a TOML file holds; paths in it are relative to its folder.

    `logs` is a list of paths, which may have wildcards (`logs/*.csv`), or a table of paths by name; `prices` a file,
    or a table; everything else is as `sweep` has it. Without `out` results go to a folder of the file's own name.
    Raises ValueError where the file cannot be read, or names what `sweep` does not know, or no log.
    """
    path = Path(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file: give the TOML file of a sweep") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}: correct the file") from None
    try:
        _check(settings)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    folder = path.parent
    settings["logs"] = _logs(settings.get("logs"), folder, path)
    settings["out"] = str(folder / settings.get("out", path.stem))
    if isinstance(settings.get("prices"), str):
        settings["prices"] = str(folder / settings["prices"])
    return settings


def _check(settings: dict[str, Any]) -> None:
    """ValueError unless every setting but the logs is one, and makes sense."""
    everything = inspect.signature(sweep).parameters
    names = [name for name in everything if name not in _NOT_IN_FILES]
    for key, value in settings.items():
        if key not in names:
            raise ValueError(f"{key} is no setting of a sweep{near(key, names)}: there are {', '.join(names)}")
        frozen(value, key)
    instance(settings.get("out", ""), str, "out")
    instance(settings.get("prices", ""), (str, Mapping), "prices")
    if isinstance(settings.get("prices"), Mapping):
        read_prices(settings["prices"])
    choice(settings.get("task", TASKS[0]), "task", TASKS)
    swept = inspect.signature(check_settings).parameters
    check_settings(**{name: settings.get(name, everything[name].default) for name in swept})


def _logs(value: Any, folder: Path, path: Path) -> Any:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return {name: str(folder / path) for name, path in value.items()}
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f'{path}: logs: give a list of files such as ["logs/*.csv"], or a table of files by name')
    files: list[str] = []
    for pattern in patterns:
        # A name without wildcards stands, so that a log that is missing is told of with the others.
        some = sorted(glob.glob(str(folder / pattern))) if glob.has_magic(pattern) else [str(folder / pattern)]
        if not some:
            raise ValueError(f"{path}: logs: no file is named {pattern}: correct the pattern, or leave it out")
        files += some
    return list(dict.fromkeys(files))
