"""Answers that are JSON or calls: when two are equal."""

import json

import pytest
from hypothesis import given, strategies as st

from rcjax.policy.decisions import Agreement, canonical_answer
from rcjax.policy.signals.answers import canonical_calls, canonical_json

EQUAL = [
    ('{"a":1,"b":2}', '{"b": 2.0, "a": 1}'),
    ('[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]', '[{"name": "f", "arguments": {}}]'),
    ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',) * 2,
    ('```json\n{"a": "é"}\n```', '{"a": "\\u00e9"}'),
    ("[1e20]", "[100000000000000000000]"),
    ("[]", " [ ] "),
    ('{"a": "\\ud800"}', '{"a":"\\ud800"}'),
]

DIFFERENT = [
    ('{"x":[1,234]}', '{"x":[1234]}'),
    ('{"id":"007"}', '{"id":"7"}'),
    ('{"id":"A"}', '{"id":"a"}'),
    ("[1, 2]", "[2, 1]"),
    ("[true]", "[1]"),
    ("[null]", '["null"]'),
    ('[{"name": "f", "arguments": {}}]', '[{"name": "F", "arguments": {}}]'),
    ('[{"name": "f", "arguments": {}}]', "[]"),
    ('{"a": 1', '{"a": 1}'),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_documents_have_one_canonical_form(one, other):
    assert canonical_answer(one, "text") == canonical_answer(other, "text") is not None
    assert Agreement("small", "large").equal(one, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_documents_have_different_forms(one, other):
    assert canonical_answer(one, "text") != canonical_answer(other, "text")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=st.lists(JSON, max_size=3) | st.dictionaries(st.text(), JSON, max_size=3), indent=st.sampled_from([None, 2])
)
def test_a_canonical_form_is_its_own_form(value, indent):
    form = canonical_json(json.dumps(value, indent=indent))
    assert form is not None
    assert (
        canonical_json(form) == form == canonical_answer(form, "text") == canonical_answer(json.dumps(value), "choice")
    )
    form.encode()


@given(arguments=st.dictionaries(st.text(), JSON, max_size=3), name=st.text(min_size=1))
def test_ids_and_the_order_of_calls_do_not_count(arguments, name):
    one = {"id": "a", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    other = {"id": "b", "function": {"name": f"{name}2", "arguments": ""}}
    assert canonical_calls([one, other]) == canonical_calls([{**other, "id": "c"}, {**one, "id": ""}])
    assert canonical_calls([one, other]) != canonical_calls([one])


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", 5, [1], '{"a": NaN}', '{"a": 1e999}', "{" * 100_000])
def test_arguments_that_cannot_be_read_are_unknown(arguments):
    assert canonical_calls([{"name": "f", "arguments": arguments}]) is None


@pytest.mark.parametrize("calls", [["f"], [None], [{"function": "f"}], [{"name": 5, "arguments": {}}], [{"name": ""}]])
def test_values_that_are_no_calls_have_no_form(calls):
    assert canonical_calls(calls) is None
