"""A JSON file a piece at a time gives what the whole gives, wherever the pieces end."""

import io
import json

import pytest
from hypothesis import example, given, strategies as st
from misses import in_turn

from rcjax.importing import inspect_ai
from rcjax.importing.inspect_ai import members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name != "rows"), VALUES, max_size=4),
    st.lists(VALUES, max_size=5),
    st.sampled_from([None, 1]),
    st.integers(1, 40),
)
@example(others={"a": 1.3510798882109878e16}, rows=[2.5, -1e-7], indent=None, chunk=1)  # "1.35" of "1.35e+16"
def test_the_pieces_are_those_of_the_whole(others, rows, indent, chunk):
    text = json.dumps({**others, "rows": rows, "last": 1}, indent=indent)
    before, inspect_ai._CHUNK = inspect_ai._CHUNK, chunk
    try:
        pieces = [*members(io.StringIO(text), "rows")]
    finally:
        inspect_ai._CHUNK = before
    assert [value for name, value in pieces if name == "rows"] == rows
    assert {name: value for name, value in pieces if name != "rows"} == {**others, "last": 1}


@in_turn(
    "text", ["", "[1]", '{"a": 1', '{"rows": [1, 2', '{"rows": [1 2]}', '{"a" 1}', '{"a": tru}', '{"rows": [{"b": "c]}']
)
def test_what_is_no_object_or_ends_too_early(text):
    with pytest.raises(ValueError):
        [*members(io.StringIO(text), "rows")]


def test_a_list_that_is_none():
    assert [*members(io.StringIO('{"rows": null, "a": {}}'), "rows")] == [("rows", None), ("a", {})]
    assert [*members(io.StringIO("{}"), "rows")] == []


def test_what_python_writes_is_read_though_json_has_no_word_for_it():
    """As scores of evaluations that are no numbers, and seeds of more than 64 bits."""
    rows = [float("inf"), 2**70, "\ud800"]
    assert [*members(io.StringIO(json.dumps({"rows": rows, "a": -float("inf")})), "rows")] == [
        *(("rows", row) for row in rows),
        ("a", -float("inf")),
    ]
    ((_, value),) = members(io.StringIO('{"rows": [NaN]}'), "rows")
    assert value != value
