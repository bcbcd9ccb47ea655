"""What has JSON files of a format of its own: written, read, pickled, described by a schema. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib import resources
from typing import Any, ClassVar, Self

from rcjax._base import json_checks as check
from rcjax._base.files import write_atomically


class Saved:
    """A frozen dataclass with files: their "format", and their keys in order."""

    __slots__ = ()

    FORMAT: ClassVar[str]
    _keys: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, the inverse of `from_json`."""
        values = {key: thawed(getattr(self, key)) for key in self._keys}
        return {"format": self.FORMAT, "schema_version": check.SCHEMA_VERSION} | values

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build it from the object of `to_json`; unknown keys are ignored, problems a ValueError."""
        check.header(data, cls.FORMAT)
        return check.build(cls, data, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a JSON file at once: who reads it sees the old file or the new one, whole.

        Raises OSError where the file cannot be written; the file that was there is then untouched.
        """
        write_atomically(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read it from a file that `save` wrote.

        Raises ValueError (place, problem, what to do) where it is not valid, OSError where it cannot be read.
        """
        return check.load(path, cls.from_json)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the file, for readers and writers in other languages.

        It is `policy.schema.json` or `ladder.schema.json` in `rcjax/policy/`, the latter with that of policies in its
        `$defs`. It accepts every file that `load` reads. What relates one part of a file to another it cannot say:
        that `calibrations`, `rules` and `cost` have the models as keys, that the `up_to` of a model increase, that asks
        go to later models, that the last rule has no `share` and `smallest` is at most `largest`; that the costs of
        rungs rise, and the position is on one of them. `load` checks it all.
        """
        schema = _schema(cls.FORMAT.removeprefix("rcjax-"))
        return schema if "$defs" in schema else schema | {"$defs": {"policy": _schema("policy")}}


def _schema(name: str) -> dict[str, Any]:
    return json.loads(resources.files("rcjax.policy").joinpath(f"{name}.schema.json").read_text("utf-8"))


def thawed(value: Any) -> Any:
    """A value as JSON has it; records without what they leave open."""
    if isinstance(value, Saved):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {key: thawed(item) for key, item in asdict(value).items() if item is not None}
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, tuple) else value
