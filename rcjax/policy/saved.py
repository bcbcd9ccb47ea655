"""What has JSON files of a format of its own: written, read, pickled, described by a schema. Standard library only."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Self

from rcjax._base import json_checks as check
from rcjax._base.codec import description, read
from rcjax._base.files import write_atomically


class Saved:
    """A frozen dataclass with files, which tell their "format"."""

    __slots__ = ()

    FORMAT: ClassVar[str]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    @property
    def head(self) -> dict[str, Any]:
        """How its files begin."""
        return {"format": self.FORMAT, "schema_version": check.SCHEMA_VERSION}

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, the inverse of `from_json`."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build it from the object of `to_json`; unknown keys are ignored, problems a ValueError."""
        check.header(data, cls.FORMAT)
        return read(cls, data, "")

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

        It is made of the types that files are read by, and accepts every file that `load` reads. What relates one part
        of a file to another it cannot say: that `calibrations`, `rules` and `cost` have the models as keys, that the
        `up_to` of a model increase, and the last is 1, that asks go to later models, that `smallest` is at most
        `largest`; that the costs of rungs rise, and the position is on one of them. `load` checks it all.
        """
        return file_schema(cls.FORMAT, {"description": description(cls)} | cls._schema())

    @classmethod
    def _schema(cls) -> dict[str, Any]:
        """That of the object, but for what all files have."""
        raise NotImplementedError


def file_schema(form: str, record: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a file, from that of the record that it holds.

    Args:
        form: its "format".
        record: the schema of an object.
    """
    head = {"format": {"const": form}, "schema_version": {"const": check.SCHEMA_VERSION}}
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": form.replace("-", " ")}
    needed = [*head, *record["required"]]
    return about | record | {"required": needed, "properties": head | record["properties"]}
