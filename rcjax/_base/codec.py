r"""Values at the boundary: checks of arguments and of JSON files, and records as JSON.

An argument of a wrong type is a TypeError that says what was expected; a wrong value in a file is a ValueError.

| type | JSON | read as |
|---|---|---|
| `float`, `int`, `bool` | a number, a whole number, true or false | itself |
| `str` | a text that is not empty | itself |
| `Literal["a", "b"]` | one of the words | itself |
| `tuple[T, ...]`, `tuple[T, T]` | a list, a list of this length | a tuple |
| `Mapping[str, T]` | an object; no key is empty | a read-only mapping |
| `T \| None` | null, or as T | None, or as T |
| a dataclass | an object of its fields; other keys are ignored | the record |
| `Any` | any value | immutable (`freeze_json`) |
| `object` | any value | itself |
| `Annotated[T, Between(…)]` | as T | as T, a number within bounds |
| `Annotated[T, check]` | as T | the result of `check(value, place)` |
| `Annotated[T, Reads(f)]` | any value | the result of `f(value, place)` |

A `Record` checks its fields when it is made; its subclass may then check relations between them. Standard library only.

>>> @dataclass(frozen=True)
... class Offer(Record):
...     model: str
...     price: Amount
...     share: Share | None = None
>>> read_value(Offer, {"model": "small", "price": 2}, "offers[0]")
Offer(model='small', price=2.0, share=None)
>>> read_value(Offer, {"model": "small", "price": 2, "share": 7}, "offers[0]")
Traceback (most recent call last):
...
ValueError: offers[0].share: must be between 0 and 1, but it is 7
>>> to_json_value(Offer("small", 2))
{'model': 'small', 'price': 2.0}
"""

from __future__ import annotations

import inspect
import json
import operator
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial, wraps
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

SCHEMA_VERSION = 1  # of all files that rcjax writes

_WORDS = {
    NoneType: "None",
    bool: "True or False",
    Real: "a number",
    int: "a whole number",
    str: "a text",
    os.PathLike: "a path",
    Mapping: "a mapping",
}

#: rcjax's classes in words, with a function that returns an instance.
_OURS = {
    "AbstractPolicy": "a policy (rcjax.load_policy)",
    "CascadeModel": "a model (rcjax.fit)",
    "FittedModel": "a model (rcjax.fit)",
    "Frontier": "a frontier (rcjax.solve_frontier)",
    "Log": "a log (rcjax.read_log)",
    "Posterior": "a posterior (rcjax.bayes.sample_posterior)",
}

_MAX_LENGTH = 200  # characters of a value in a message

_short = reprlib.Repr()

_short.maxstring = _short.maxother = 80


def require_instance(value: object, kinds: type | tuple[type, ...], argument: str) -> None:
    """Raise TypeError unless an argument is an instance of a class, or of one class in a tuple.

    >>> require_instance("x", (str, Mapping), "prices")
    >>> require_instance(None, (str, Mapping), "prices")
    Traceback (most recent call last):
    TypeError: prices must be a text or a mapping, not None
    """
    if not isinstance(value, kinds):
        classes = kinds if isinstance(kinds, tuple) else (kinds,)
        names = [_WORDS.get(kind) or _OURS.get(kind.__name__) or _with_article(kind.__name__) for kind in classes]
        raise TypeError(f"{argument} must be {' or '.join(names)}, not {describe_type(value)}")


P = ParamSpec("P")


def takes(**kinds: type | tuple[type | None, ...]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: the function raises TypeError if an argument is not of its class.

    Args:
        kinds: the class of each argument to check, or a tuple of classes; None in the tuple allows None.

    >>> @takes(log=Mapping, test=(Mapping, None))
    ... def tune(log, *, test=None):
    ...     return len(log)
    >>> tune({})
    0
    >>> tune("log.csv")
    Traceback (most recent call last):
    TypeError: log must be a mapping, not a text
    """
    classes_of = {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in kinds.items()}
    expected = {name: tuple(kind or NoneType for kind in classes) for name, classes in classes_of.items()}

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        positions = {name: position for position, name in enumerate(inspect.signature(function).parameters)}

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for name, classes in expected.items():
                if positions[name] < len(args):
                    require_instance(args[positions[name]], classes, name)
                elif name in kwargs:
                    require_instance(kwargs[name], classes, name)
            return function(*args, **kwargs)

        return checked

    return decorate


def whole_number(value: Any, argument: str, low: int | None = None) -> int:
    """Return a whole number of at least `low` as int; TypeError or ValueError for other values, bools included.

    >>> whole_number(1.5, "retries", 0)
    Traceback (most recent call last):
    TypeError: retries must be a whole number, not a float
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} must be a whole number, not {describe_type(value)}")
    if low is not None and value < low:
        raise ValueError(f"{argument} must be at least {low}, not {value}")
    return operator.index(value)


def describe_type(value: object) -> str:
    """Return the type of a value in words.

    >>> describe_type(None), describe_type(int), describe_type([1]), describe_type("1.5")
    ('None', 'the class int', 'a list', 'a text')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "a text" if type(value) is str else _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"


def abbreviate(value: object) -> str:
    """Quote a value for a message: on one line, nested and long values abbreviated."""
    text = _short.repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def visible(text: str) -> str:
    """Return a text as one line that is safe to print: unprintable and direction-changing characters become escapes.

    >>> print(visible("small\\x1b[2J\\nlarge \\u202e größe"))
    small\\x1b[2J\\nlarge \\u202e größe
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def require(condition: bool, place: str, requirement: str, value: object) -> None:
    """Raise ValueError unless a condition holds.

    Args:
        condition: the condition.
        place: place of the value, for the message.
        requirement: the requirement in words, such as "must be a number".
        value: the value.
    """
    if not condition:
        fail(place, requirement, value)


def fail(place: str, requirement: str, value: object) -> NoReturn:
    """Raise ValueError for a value that does not meet a requirement; arguments as for `require`."""
    problem = "it is missing or null" if value is None else f"it is {abbreviate(value)}"
    raise ValueError(visible(f"{place}: {requirement}, but {problem}"))  # names in files may hold anything


@contextmanager
def prefix_place(place: str) -> Iterator[None]:
    """Prefix a place to the message of a ValueError in the block, which names a place relative to it."""
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"{place}.{problem}" if place else str(problem)) from None


def check_header(data: Any, kind: str) -> None:
    """Check the beginning of a file that rcjax wrote: an object with its format and the version of its schema."""
    require(isinstance(data, Mapping), "file", "must hold a JSON object", data)
    form, version = data.get("format"), data.get("schema_version")
    require(form == kind, "format", f"must be {kind!r}, as in every {kind.removeprefix('rcjax-')}", form)
    if version != SCHEMA_VERSION or type(version) is not int:
        newer = type(version) is int and version > SCHEMA_VERSION
        advice = ": a newer rcjax wrote it: upgrade rcjax" if newer else ""
        raise ValueError(
            f"schema_version: this file has version {abbreviate(version)}; rcjax reads {SCHEMA_VERSION}{advice}"
        )


def load_json(path: str | os.PathLike[str], build: Callable[[Any], T]) -> T:
    """Build an object from the JSON value in a file; errors name the file."""
    require_instance(path, (str, os.PathLike), "path")
    content = Path(path).read_bytes()
    try:
        return build(parse_json(content))
    except ValueError as problem:
        raise ValueError(f"{os.fspath(path)}: {problem}") from problem


def parse_json(content: bytes) -> Any:
    """Parse the bytes of a JSON file; ValueError for invalid JSON, or a key that occurs twice in one object."""
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except RecursionError as problem:
        raise ValueError("not JSON that rcjax writes: it is nested too deeply") from problem
    except ValueError as problem:
        raise ValueError(f"not JSON ({problem}); if it was cut off, write it again") from problem


def read_table(path: str | os.PathLike[str]) -> Any:
    """Read a TOML or JSON file, by its suffix; UTF-8, or the encoding of a byte order mark.

    Raises ValueError, which names the file, the problem and, if the parser knows it, the line; and OSError.
    """
    import tomllib  # here: few commands need it

    path = Path(path)
    content = path.read_bytes()
    if path.suffix.lower() not in (".toml", ".json"):
        raise ValueError(f"{path.name}: a file of kind {path.suffix!r} cannot be read: give .toml or .json")
    try:
        text = content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
        is_toml = path.suffix.lower() == ".toml"
        return tomllib.loads(text.replace("\r\n", "\n")) if is_toml else parse_json(text.encode())
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path.name}: cannot be read: {reason}: correct the file") from None


def object_in(line: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a line; {} if it is not an object.

    >>> object_in('{"a": 1}'), object_in("[1]"), object_in(b'{"a"')
    ({'a': 1}, {}, {})
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {abbreviate(repeated)} is there twice in one object")
    return unique


HUGE = 1e100  # above all sums of money and coefficients; products of two or three are still finite

TINY = 1 / HUGE

_MAX_DEPTH = 50  # levels of nesting in free JSON values, well inside Python's recursion limit


Reader = Callable[[Any, str], Any]
"""Check and convert a value, given the value and its place; ValueError for a wrong one."""


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both included."""

    low: float = -HUGE
    high: float = HUGE


@dataclass(frozen=True, slots=True)
class Reads:
    """The reader of a field of several types."""

    reader: Reader


def not_empty(value: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    """Return a list unchanged; ValueError if it is empty."""
    require(value != (), place, "must be a list, not empty", value)
    return value


def _different(value: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    require(len(set(value)) == len(value), place, "must not repeat a model", value)
    return value


Amount = Annotated[float, Between(0.0)]
Positive = Annotated[float, Between(TINY)]  # its inverse is finite
Share = Annotated[float, Between(0.0, 1.0)]
Names = Annotated[tuple[str, ...], not_empty, _different]


def read_value(kind: Any, value: Any, place: str) -> Any:
    """Check a value against a type and convert it; ValueError names its place, the problem and the requirement.

    Args:
        kind: the type.
        value: JSON value, or a value that is converted already.
        place: place of the value, for the message.
    """
    return _reader(kind)(value, place)


def to_json_value(value: Any) -> Any:
    """Return a value as JSON values: objects for records (without fields that are None) and mappings, lists for tuples.

    >>> to_json_value(MappingProxyType({"choices": ("A", "B")}))
    {'choices': ['A', 'B']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        values = {entry.name: getattr(value, entry.name) for entry in fields(value) if entry.init}
        return {key: to_json_value(item) for key, item in values.items() if item is not None}
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    return [to_json_value(item) for item in value] if isinstance(value, tuple | list) else value


def read_list(kind: Any, value: Any, place: str, length: int) -> tuple[Any, ...]:
    """Read a list of `length` values of a type.

    Args:
        kind: type of each entry.
        value, place: as in `read_value`.
        length: required length.
    """
    return _list(_reader(kind), length, value, place)


@cache
def _reader(kind: Any) -> Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked_reader(arguments[0], arguments[1:])
    if origin is Literal:
        return partial(choice, allowed=arguments)
    if origin in (Union, UnionType):
        return partial(_read_optional, _reader(next(kind for kind in arguments if kind is not NoneType)))
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
        return to_json_value(self)


def check_fields(record: Any) -> None:
    """Check and convert the fields of a frozen dataclass by their types, in place."""
    for key, kind in field_types(type(record)).items():
        object.__setattr__(record, key, read_value(kind, getattr(record, key), key))


def read_fields(kind: Any, value: Any, place: str) -> dict[str, Any]:
    """Read the fields of a record that a JSON object holds; other keys are ignored.

    Args:
        kind: class of the record.
        value: JSON value.
        place: place of the value, for the message.
    """
    keys = read_value(Object, value, place)
    return {
        key: read_value(type_, value[key], f"{place}.{key}") for key, type_ in field_types(kind).items() if key in keys
    }


def require_subset(names: Sequence[str], place: str, allowed: Sequence[str]) -> Sequence[str]:
    """Return names unchanged; ValueError unless they are a subset of the allowed names, in the same order."""
    ordered = [name for name in allowed if name in names]
    require(ordered == list(names), place, f"must name some of {', '.join(allowed)}, in this order", names)
    return names


def require_keys(value: Mapping[str, T], place: str, keys: Sequence[str]) -> Mapping[str, T]:
    """Return a mapping with its keys in the required order; ValueError if it has other keys.

    Args:
        value: the mapping.
        place: place of the mapping, for the message.
        keys: required keys.
    """
    require(set(value) == set(keys), place, f"must have as keys {tuple(keys)}", list(value))
    return MappingProxyType({key: value[key] for key in keys})


def freeze_json(value: Any, place: str, depth: int = 0) -> Any:
    """Return any JSON value with tuples for lists and read-only mappings for objects."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Real):
        checked = number(value, place)
        return int(value) if isinstance(value, Integral) else checked
    require(depth < _MAX_DEPTH, f"{place[:40]}…", f"must not be nested more than {_MAX_DEPTH} deep", value)
    deeper = partial(freeze_json, depth=depth + 1)
    if isinstance(value, (list, tuple)):
        return tuple(deeper(entry, f"{place}[{i}]") for i, entry in enumerate(value))
    require(isinstance(value, Mapping), place, "must be a JSON value", value)
    return _mapping(deeper, value, place)


Object = Mapping[str, Annotated[object, Reads(freeze_json)]]


def number(value: Any, place: str, low: float = -HUGE, high: float = HUGE) -> float:
    """Return a number as float; ValueError for other types, bools and NaN.

    Args:
        value: the value.
        place: place of the value, for the message.
        low, high: bounds, both included.
    """
    if type(value) is float and low <= value <= high:  # the fast path: nearly all numbers in large files
        return value
    require(issubclass(type(value), Real) and type(value) is not bool, place, "must be a number", value)
    exact = value if isinstance(value, int) else float(value)  # 10**400 has no float, 1e100 no float32
    require(low <= exact <= high, place, f"must be between {low:g} and {high:g}", value)  # NaN is not
    return float(value)


def choice(value: Any, place: str, allowed: tuple[str, ...]) -> str:
    """Return a word; ValueError unless it is one of those allowed."""
    if type(value) is not str or value not in allowed:
        require(_text(value, place) in allowed, place, f"must be one of {', '.join(allowed)}", value)
    return value


def _integer(value: Any, place: str, low: int = 0, high: int = 10**15) -> int:
    require(issubclass(type(value), Integral) and type(value) is not bool, place, "must be a whole number", value)
    require(low <= value <= high, place, f"must be between {low:g} and {high:g}", value)
    return int(value)


def _flag(value: Any, place: str) -> bool:
    require(isinstance(value, bool), place, "must be true or false", value)
    return value


def _text(value: Any, place: str) -> str:
    require(isinstance(value, str) and value != "", place, "must be a text that is not empty", value)
    return value


def _checked_reader(kind: Any, checks: tuple[Any, ...]) -> Reader:
    """Return the reader of an annotated type: the reader of the type, followed by the checks."""
    reader = checks[0].reader if isinstance(checks[0], Reads) else _reader(kind)
    for check in checks[isinstance(checks[0], Reads) :]:
        if isinstance(check, Between):
            reader = partial(number if kind is float else _integer, low=check.low, high=check.high)
        else:
            reader = partial(_read_then_check, reader, check)
    return reader


def _read_then_check(first: Reader, second: Reader, value: Any, place: str) -> Any:
    return second(first(value, place), place)


def _read_optional(read_other: Reader, value: Any, place: str) -> Any:
    return None if value is None else read_other(value, place)


def _list(read_entry: Reader, length: int | None, value: Any, place: str) -> tuple[Any, ...]:
    requirement = "must be a list" if length is None else f"must be a list of {length}"
    require(isinstance(value, (list, tuple)) and length in (None, len(value)), place, requirement, value)
    return tuple(read_entry(entry, f"{place}[{i}]") for i, entry in enumerate(value))


def _mapping(read_entry: Reader, value: Any, place: str) -> Mapping[str, Any]:
    require(isinstance(value, Mapping), place, "must be an object", value)
    return MappingProxyType({_text(key, place): read_entry(entry, f"{place}[{key!r}]") for key, entry in value.items()})


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a record's fields, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: hints[entry.name] for entry in fields(kind) if entry.init}


def _needed(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _record(kind: Any, value: Any, place: str) -> Any:
    if isinstance(value, kind):
        return value
    require(isinstance(value, Mapping), place, "must be an object", value)
    names = [entry.name for entry in fields(kind) if entry.init and (entry.name in value or _needed(entry))]
    with prefix_place(place):
        return kind(**{name: value.get(name) for name in names})


_LEAVES: dict[Any, Reader] = {
    Any: freeze_json,
    object: lambda value, place: value,
    float: number,
    int: _integer,
    bool: _flag,
    str: _text,
}
