"""Records as JSON: how a value is read with checks, and written, told by its type alone.

| type | JSON | read as |
|---|---|---|
| `float`, `int`, `bool` | a number, a whole number, true or false | itself |
| `str` | a text that is not empty | itself |
| `Literal["a", "b"]` | one of the words | itself |
| `tuple[T, ...]`, `tuple[T, T]` | a list, a list of so many | a tuple |
| `Mapping[str, T]` | an object; no key is empty | a read-only mapping |
| `T \\| None` | null, or as T | None, or as T |
| a dataclass | an object of its fields; other keys are ignored | the record |
| `Any` | any value | immutable, as `frozen` gives it |
| `object` | any value | itself |
| `Annotated[T, Between(…)]` | as T | as T, a number between two |
| `Annotated[T, check]` | as T | what the check, given the value and its place, makes of it |

A `Record` checks its fields when it is made, and then what relates them to each other. Standard library only.

>>> @dataclass(frozen=True)
... class Offer(Record):
...     model: str
...     price: Amount
...     share: Share | None = None
>>> read(Offer, {"model": "small", "price": 2}, "offers[0]")
Offer(model='small', price=2.0, share=None)
>>> read(Offer, {"model": "small", "price": 2, "share": 7}, "offers[0]")
Traceback (most recent call last):
...
ValueError: offers[0].share: must be between 0 and 1, but it is 7
>>> written(Offer("small", 2))
{'model': 'small', 'price': 2.0}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rcjax._base.checks import inside, require

T = TypeVar("T")

HUGE = 1e100  # no sum of money or coefficient comes near it, and products of two or three still are finite

TINY = 1 / HUGE

_DEEPEST = 50  # levels of nesting in free JSON values, well inside Python's recursion limit


@dataclass(frozen=True, slots=True)
class Between:
    """The least and the greatest that a number may be."""

    low: float = -HUGE
    high: float = HUGE


def filled(value: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """A list that is not empty, as it is."""
    require(value != (), where, "must be a list, not empty", value)
    return value


def _different(value: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    require(len(set(value)) == len(value), where, "must not repeat a model", value)
    return value


Amount = Annotated[float, Between(0.0)]
Positive = Annotated[float, Between(TINY)]  # it has an inverse
Share = Annotated[float, Between(0.0, 1.0)]
Names = Annotated[tuple[str, ...], filled, _different]
Object = Mapping[str, Any]


Reader = Callable[[Any, str], Any]
"""Takes a value and its place, and gives what is kept of it; ValueError for what is wrong."""


def read(kind: Any, value: Any, where: str) -> Any:
    """A value as a type has it; ValueError tells its place, what is wrong with it, and what it must be.

    Args:
        kind: the type.
        value: what the file holds there, or the value itself.
        where: the place, for the message.
    """
    return _reader(kind)(value, where)


def written(value: Any) -> Any:
    """A value as JSON has it: objects for records (without what they leave open) and mappings, lists for tuples.

    >>> written(MappingProxyType({"choices": ("A", "B")}))
    {'choices': ['A', 'B']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        values = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        return {key: written(item) for key, item in values.items() if item is not None}
    if isinstance(value, Mapping):
        return {key: written(item) for key, item in value.items()}
    return [written(item) for item in value] if isinstance(value, tuple | list) else value


def read_list(kind: Any, value: Any, where: str, length: int) -> tuple[Any, ...]:
    """A list of so many values of a type, as `read` reads them.

    Args:
        kind: the type of each.
        value, where: as of `read`.
        length: how many there must be.
    """
    return _list(_reader(kind), length, value, where)


@cache
def _reader(kind: Any) -> Reader:
    """How values of a type are read."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _held_to(arguments[0], arguments[1:])
    if origin is Literal:
        return partial(choice, allowed=arguments)
    if origin in (Union, UnionType):
        return partial(_or_null, _reader(next(kind for kind in arguments if kind is not NoneType)))
    if origin is tuple:
        return partial(_list, _reader(arguments[0]), None if arguments[-1] is ... else len(arguments))
    if origin is Mapping:
        return partial(_mapping, _reader(arguments[1]))
    return partial(_record, kind) if is_dataclass(kind) else _LEAVES[kind]


class Record:
    """A frozen dataclass that checks its fields by their types, and keeps each as it is read."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it, without what is open."""
        return written(self)


def check_fields(record: Any) -> None:
    """Check the fields of a frozen dataclass by their types, and keep each as it is read."""
    for key, kind in kinds_of(type(record)).items():
        object.__setattr__(record, key, read(kind, getattr(record, key), key))


def read_fields(kind: Any, value: Any, where: str) -> dict[str, Any]:
    """The fields of a record that an object holds, each read as its type says.

    Args:
        kind: the class of the record.
        value: what the file holds there.
        where: the place, for the message.
    """
    known = read(Object, value, where)
    return {key: read(one, value[key], f"{where}.{key}") for key, one in kinds_of(kind).items() if key in known}


def among(names: Sequence[str], where: str, allowed: Sequence[str]) -> Sequence[str]:
    """Names, which must be some of those allowed, in their order; ValueError where they are others."""
    right = [one for one in allowed if one in names]
    require(right == list(names), where, f"must name some of {', '.join(allowed)}, in this order", names)
    return names


def keyed(value: Mapping[str, T], where: str, keys: Sequence[str]) -> Mapping[str, T]:
    """A mapping whose keys must be these, in their order; ValueError where they are others.

    Args:
        value: the mapping.
        where: its place, for the message.
        keys: what they must be.
    """
    require(set(value) == set(keys), where, f"must have as keys {tuple(keys)}", list(value))
    return MappingProxyType({key: value[key] for key in keys})


def frozen(value: Any, where: str, depth: int = 0) -> Any:
    """Any JSON value, with tuples for lists and read-only mappings for objects."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Real):
        checked = number(value, where)
        return int(value) if isinstance(value, Integral) else checked
    require(depth < _DEEPEST, f"{where[:40]}…", f"must not be nested more than {_DEEPEST} deep", value)
    deeper = partial(frozen, depth=depth + 1)
    if isinstance(value, (list, tuple)):
        return tuple(deeper(entry, f"{where}[{i}]") for i, entry in enumerate(value))
    require(isinstance(value, Mapping), where, "must be a JSON value", value)
    return _mapping(deeper, value, where)


def number(value: Any, where: str, low: float = -HUGE, high: float = HUGE) -> float:
    """A number as float; no boolean, no NaN.

    Args:
        value: what should be one.
        where: its place, for the message.
        low, high: between these it must be.
    """
    if type(value) is float and low <= value <= high:  # nearly all there are, in files of any size
        return value
    require(issubclass(type(value), Real) and type(value) is not bool, where, "must be a number", value)
    exact = value if isinstance(value, int) else float(value)  # 10**400 has no float, 1e100 no float32
    require(low <= exact <= high, where, f"must be between {low:g} and {high:g}", value)  # NaN is not
    return float(value)


def choice(value: Any, where: str, allowed: tuple[str, ...]) -> str:
    """One of the words allowed."""
    if type(value) is not str or value not in allowed:
        require(_text(value, where) in allowed, where, f"must be one of {', '.join(allowed)}", value)
    return value


def _whole(value: Any, where: str, low: int = 0, high: int = 10**15) -> int:
    require(issubclass(type(value), Integral) and type(value) is not bool, where, "must be a whole number", value)
    require(low <= value <= high, where, f"must be between {low:g} and {high:g}", value)
    return int(value)


def _flag(value: Any, where: str) -> bool:
    require(isinstance(value, bool), where, "must be true or false", value)
    return value


def _text(value: Any, where: str) -> str:
    require(isinstance(value, str) and value != "", where, "must be a text that is not empty", value)
    return value


def _held_to(kind: Any, checks: tuple[Any, ...]) -> Reader:
    """Of a type whose values are held to more."""
    reader = _reader(kind)
    for check in checks:
        if isinstance(check, Between):
            reader = partial(number if kind is float else _whole, low=check.low, high=check.high)
        else:
            reader = partial(_then, reader, check)
    return reader


def _then(first: Reader, second: Reader, value: Any, where: str) -> Any:
    return second(first(value, where), where)


def _or_null(read_other: Reader, value: Any, where: str) -> Any:
    return None if value is None else read_other(value, where)


def _list(read_entry: Reader, length: int | None, value: Any, where: str) -> tuple[Any, ...]:
    what = "must be a list" if length is None else f"must be a list of {length}"
    require(isinstance(value, (list, tuple)) and length in (None, len(value)), where, what, value)
    return tuple(read_entry(one, f"{where}[{i}]") for i, one in enumerate(value))


def _mapping(read_entry: Reader, value: Any, where: str) -> Mapping[str, Any]:
    require(isinstance(value, Mapping), where, "must be an object", value)
    return MappingProxyType({_text(key, where): read_entry(one, f"{where}[{key!r}]") for key, one in value.items()})


@cache
def kinds_of(kind: Any) -> dict[str, Any]:
    """The types of a record's fields, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind) if one.init}


def _needed(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _record(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, kind):
        return value
    require(isinstance(value, Mapping), where, "must be an object", value)
    given = {one.name: value.get(one.name) for one in fields(kind) if one.init and (one.name in value or _needed(one))}
    with inside(where):
        return kind(**given)


_LEAVES: dict[Any, Reader] = {
    Any: frozen,
    object: lambda value, where: value,
    float: number,
    int: _whole,
    bool: _flag,
    str: _text,
}
