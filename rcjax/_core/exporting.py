"""Pytrees that `jax.export` can write: a function of them, once exported, is read and called by another process."""

import json
from contextlib import suppress
from typing import Any, TypeVar

from jax import export

Class = TypeVar("Class", bound=type)


def exportable(cls: Class) -> Class:
    """Register a pytree for `jax.export`, by its module and name; a class decorator, above that of the pytree.

    What is static in it must be text, or tuples of text. A name that is taken, as where a class is defined anew, stays
    with the first class.
    """
    name = f"{cls.__module__}.{cls.__qualname__}"
    with suppress(ValueError):
        if issubclass(cls, tuple):
            export.register_namedtuple_serialization(cls, serialized_name=name)
            return cls
        export.register_pytree_node_serialization(
            cls,
            serialized_name=name,
            serialize_auxdata=lambda static: json.dumps(static).encode(),
            deserialize_auxdata=lambda text: _as_tuples(json.loads(text)),
        )
    return cls


def _as_tuples(static: Any) -> Any:
    return tuple(map(_as_tuples, static)) if isinstance(static, list) else static
