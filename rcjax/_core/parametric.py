"""The base class of parametric families: a subclass with annotated parameters is a frozen dataclass and a pytree."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer

from rcjax._base.checks import what_it_is
from rcjax._core.exporting import exportable


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
