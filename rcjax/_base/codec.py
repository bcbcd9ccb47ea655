"""Read and write records as JSON; the type of a value says how it is checked and converted.

| type | JSON | read as |
|---|---|---|
| `float`, `int`, `bool` | a number, a whole number, true or false | itself |
| `str` | a text that is not empty | itself |
| `Literal["a", "b"]` | one of the words | itself |
| `tuple[T, ...]`, `tuple[T, T]` | a list, a list of this length | a tuple |
| `Mapping[str, T]` | an object; no key is empty | a read-only mapping |
| `T \\| None` | null, or as T | None, or as T |
| a dataclass | an object of its fields; other keys are ignored | the record |
| `Any` | any value | immutable (`frozen`) |
| `object` | any value | itself |
| `Annotated[T, Between(…)]` | as T | as T, a number within bounds |
| `Annotated[T, check]` | as T | the result of `check(value, place)` |

A `Record` checks its fields when it is made; its subclass may then check relations between them. Standard library only.

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

HUGE = 1e100  # above all sums of money and coefficients; products of two or three are still finite

TINY = 1 / HUGE

_DEEPEST = 50  # levels of nesting in free JSON values, well inside Python's recursion limit


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both included."""

    low: float = -HUGE
    high: float = HUGE


def filled(value: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """Return a list unchanged; ValueError if it is empty."""
    require(value != (), where, "must be a list, not empty", value)
    return value


def _different(value: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    require(len(set(value)) == len(value), where, "must not repeat a model", value)
    return value


Amount = Annotated[float, Between(0.0)]
Positive = Annotated[float, Between(TINY)]  # its inverse is finite
Share = Annotated[float, Between(0.0, 1.0)]
Names = Annotated[tuple[str, ...], filled, _different]
Object = Mapping[str, Any]


Reader = Callable[[Any, str], Any]
"""Check and convert a value, given the value and its place; ValueError for a wrong one."""


def read(kind: Any, value: Any, where: str) -> Any:
    """Check a value against a type and convert it; ValueError names its place, the problem and the requirement.

    Args:
        kind: the type.
        value: JSON value, or a value that is converted already.
        where: place of the value, for the message.
    """
    return _reader(kind)(value, where)


def written(value: Any) -> Any:
    """Return a value as JSON values: objects for records (without fields that are None) and mappings, lists for tuples.

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
    """Read a list of `length` values of a type.

    Args:
        kind: type of each entry.
        value, where: as in `read`.
        length: required length.
    """
    return _list(_reader(kind), length, value, where)


@cache
def _reader(kind: Any) -> Reader:
    """Return the reader of a type's values."""
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
    """A frozen dataclass that checks and converts its fields by their types when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, without fields that are None."""
        return written(self)


def check_fields(record: Any) -> None:
    """Check and convert the fields of a frozen dataclass by their types, in place."""
    for key, kind in kinds_of(type(record)).items():
        object.__setattr__(record, key, read(kind, getattr(record, key), key))


def read_fields(kind: Any, value: Any, where: str) -> dict[str, Any]:
    """Read those fields of a record that a JSON object holds; other keys are ignored.

    Args:
        kind: class of the record.
        value: JSON value.
        where: place of the value, for the message.
    """
    known = read(Object, value, where)
    return {key: read(one, value[key], f"{where}.{key}") for key, one in kinds_of(kind).items() if key in known}


def among(names: Sequence[str], where: str, allowed: Sequence[str]) -> Sequence[str]:
    """Return names unchanged; ValueError unless they are a subset of the allowed names, in the same order."""
    right = [one for one in allowed if one in names]
    require(right == list(names), where, f"must name some of {', '.join(allowed)}, in this order", names)
    return names


def keyed(value: Mapping[str, T], where: str, keys: Sequence[str]) -> Mapping[str, T]:
    """Return a mapping with its keys in the required order; ValueError if it has other keys.

    Args:
        value: the mapping.
        where: place of the mapping, for the message.
        keys: required keys.
    """
    require(set(value) == set(keys), where, f"must have as keys {tuple(keys)}", list(value))
    return MappingProxyType({key: value[key] for key in keys})


def frozen(value: Any, where: str, depth: int = 0) -> Any:
    """Return any JSON value with tuples for lists and read-only mappings for objects."""
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
    """Return a number as float; ValueError for other types, bools and NaN.

    Args:
        value: the value.
        where: place of the value, for the message.
        low, high: bounds, both included.
    """
    if type(value) is float and low <= value <= high:  # the fast path: nearly all numbers in large files
        return value
    require(issubclass(type(value), Real) and type(value) is not bool, where, "must be a number", value)
    exact = value if isinstance(value, int) else float(value)  # 10**400 has no float, 1e100 no float32
    require(low <= exact <= high, where, f"must be between {low:g} and {high:g}", value)  # NaN is not
    return float(value)


def choice(value: Any, where: str, allowed: tuple[str, ...]) -> str:
    """Return a word; ValueError unless it is one of those allowed."""
    if type(value) is not str or value not in allowed:
        require(_text(value, where) in allowed, where, f"must be one of {', '.join(allowed)}", value)
    return value


def _integer(value: Any, where: str, low: int = 0, high: int = 10**15) -> int:
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
    """Return the reader of an annotated type: that of the type, followed by the checks."""
    reader = _reader(kind)
    for check in checks:
        if isinstance(check, Between):
            reader = partial(number if kind is float else _integer, low=check.low, high=check.high)
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
    """Return the types of a record's fields, by name."""
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
    int: _integer,
    bool: _flag,
    str: _text,
}
