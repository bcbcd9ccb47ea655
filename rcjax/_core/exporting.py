"""Register pytrees for `jax.export`, so that another process can load and call an exported function of them."""

import json
from contextlib import suppress
from typing import Any, TypeVar

from jax import export

Class = TypeVar("Class", bound=type)


def exportable(cls: Class) -> Class:
    """Register a pytree class for `jax.export` under its module and name; a decorator above that of the pytree.

    Its static data must be texts, or tuples of texts. A name that is taken, such as that of a class defined again,
    stays with the first class.
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
