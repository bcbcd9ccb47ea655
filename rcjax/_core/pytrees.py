"""Parametric families as frozen pytrees, their registration for `jax.export`, and arrays as JSON values."""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.core import Tracer

from rcjax._base.codec import what_it_is

Class = TypeVar("Class", bound=type)

#: Array of numpy on the host, of jax within compiled functions.
Array: TypeAlias = np.ndarray | jax.Array


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


def plain(value: Any) -> Any:
    """Convert arrays to lists, and numbers that are not finite (an undefined standard error) to None, recursively.

    >>> plain({"error": np.array([0.5, np.nan]), "models": ("small", "large")})
    {'error': [0.5, None], 'models': ['small', 'large']}
    """
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def arrays_to_json(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as nested lists; infinities (an undefined standard error) become None."""
    data = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "transform"}
    return {name: plain(value) for name, value in data.items()}


def arrays_from_json(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by field: the inverse of `arrays_to_json`."""

    def array(name: str, value: tuple[float, ...] | list[list[float] | float]) -> jax.Array:
        values = np.array(value, dtype=float)
        return jnp.asarray(np.where(np.isnan(values), np.inf, values), int if name == "status" else None)

    return {name: array(name, value) for name, value in part.items()}


class Status(IntEnum):
    """A result code with its meaning: subclasses list their members as `NAME = code, "meaning"`.

    A member is an integer, so that arrays and jitted functions can hold it.

    >>> class Weather(Status):
    ...     FAIR = 0, "not a cloud"
    >>> Weather(0).message, Weather.FAIR + 1
    ('not a cloud', 1)
    """

    message: str

    def __new__(cls, code: int, message: str) -> "Status":
        """Make a member of its code and message."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        return member


def param(default: float, *, support: tuple[float, float], grid: tuple[float, ...] = (), free: bool = True) -> Any:
    """Declare a parameter of a family of copulas or of marginals.

    Args:
        default: default value.
        support: closed interval of its values. The family must be defined at each finite end; for an open end, give a
            number inside.
        grid: values that a likelihood fit of a copula tries, to keep the best.
        free: whether a fit may change it.
    """
    low, high = support
    if not low <= default <= high:
        raise ValueError(f"default {default} lies outside the support {support}")
    metadata = {"support": (float(low), float(high)), "grid": tuple(grid), "free": free}
    return dataclasses.field(default=default, metadata=metadata)


#: Metadata of a field that is not a parameter of the family: it is never checked or fitted.
NO_PARAMETER = {"support": None, "free": False}


@dataclass_transform(frozen_default=True, field_specifiers=(param, dataclasses.field))
class Parametric:
    """Base class of families; the parameters are the fields of the dataclass.

    A parameter outside its support raises ValueError, unless jax traces and its value is unknown.
    """

    #: Intervals of the parameters; names of the free ones; and the grids over which a fit profiles others.
    supports: ClassVar[dict[str, tuple[float, float]]] = {}
    free: ClassVar[tuple[str, ...]] = ()
    grids: ClassVar[dict[str, tuple[float, ...]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        supports = {f.name: f.metadata.get("support", (-np.inf, np.inf)) for f in fields}
        cls.supports = {name: support for name, support in supports.items() if support is not None}
        cls.grids = {f.name: f.metadata["grid"] for f in fields if f.metadata.get("grid")}
        cls.free = tuple(f.name for f in fields if f.metadata.get("free", True) and f.name not in cls.grids)
        _register(cls, tuple(f.name for f in fields))

    def __post_init__(self) -> None:
        for name, (low, high) in self.supports.items():
            value = getattr(self, name)
            if isinstance(value, str | bytes | type):
                raise TypeError(f"{name} must be an array of numbers, not {what_it_is(value)}")
            if isinstance(value, Tracer) or (values := np.asarray(value)).dtype.kind not in "fiu":
                continue
            outside = ~((values >= low) & (values <= high) & np.isfinite(values))
            if outside.any():
                worst = values[outside].flat[0]
                left, right = "[" if np.isfinite(low) else "(", "]" if np.isfinite(high) else ")"
                interval = f"{left}{low:g}, {high:g}{right}"
                raise ValueError(f"{type(self).__name__}: {name} is {worst:g}; it must lie in {interval}")


def subclasses(cls: type) -> Iterator[Any]:
    """Yield all subclasses of a class, the user's included.

    >>> class Own(Parametric):
    ...     pass
    >>> Own in set(subclasses(Parametric))
    True
    """
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def _register(cls, names: tuple[str, ...]) -> None:
    """Register a class as a pytree; unflattening skips `__init__`, since jax also passes tracers and placeholders."""

    def flatten(member: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(member, name) for name in names), None

    def flatten_with_keys(member: Any) -> tuple[tuple[tuple[Any, Any], ...], None]:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(member, name)) for name in names), None

    def unflatten(_: None, leaves: Iterable[Any]) -> Any:
        member = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(member, name, leaf)
        return member

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    exportable(cls)
