"""Graders of calls and of JSON."""

import asyncio
import json

import pytest

from rcjax.collecting.grading import make_graders, suited_grader
from rcjax.collecting.questions import Question
from rcjax.collecting.right_answers import JsonGrader, is_right_call
from rcjax.collecting.user_graders import GraderError, NoVerdictError, Submission

RIGHT = {"name": "weather", "arguments": {"city": ["Paris", "Paris, France"], "days": 5, "unit": ["C", None]}}
RIGHT |= {"free": ["note"]}


def call(name="weather", **arguments):
    return {"name": name, "arguments": arguments}


def verdict(said, *right):
    question = Question("q", (), tuple(json.dumps(one) for one in right))
    text = said if isinstance(said, str) else json.dumps(said)
    return is_right_call(Submission(question, text, text))


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ([call(city="Paris", days=5.0)], True),
        ([call(city="Paris, France", days=5, unit="C", note="anything")], True),
        (call(city="Paris", days=5), True),
        ([call(city="paris", days=5)], False),
        ([call(city="Paris", days="5")], False),
        ([call(city="Paris", days=5, unit="F")], False),
        ([call(city="Paris", days=5, more=1)], False),
        ([call(days=5)], False),
        ([call(city="Paris", days=True)], False),
        ([call("Weather", city="Paris", days=5)], False),
        ([call(city="Paris", days=5)] * 2, False),
        ([], False),
        ("It is sunny.", False),
        ("[invalid] " + json.dumps([call(city="Paris", days=5)]), True),
    ],
)
def test_a_call_is_right_by_its_name_and_each_argument(said, right):
    assert verdict(said, RIGHT) is right


def test_no_call_and_several_calls():
    one, other = call(city="A"), call(city="B")
    assert verdict("I cannot help.", [])
    assert not verdict([one], [])
    assert verdict([other, one], [one, other])
    assert verdict([one], [other], [one])  # either list of calls is right
    assert not verdict([one, one], [one, other])
    assert verdict([call(of=[1, 2])], call(of=[1, 2]))  # a list may be meant as itself


def test_an_invalid_right_answer_gives_no_verdict():
    for wrong in ("Paris", 5, [5], {"name": 5}, {"name": "f", "arguments": []}):
        with pytest.raises(NoVerdictError, match="is not a list of calls"):
            verdict([call()], wrong)


def json_verdict(said, right, scores=False):
    question = Question("q", (), (json.dumps(right),))
    return asyncio.run(JsonGrader(scores).grade(Submission(question, said, said)))


def test_json_is_right_where_all_fields_are():
    right = {"name": "Ann", "age": 5, "tags": ["a", "b"]}
    assert json_verdict('{"age": 5.0, "tags": ["a", "b"], "name": "Ann"}', right) is True
    assert json_verdict('{"age": 5, "tags": ["b", "a"], "name": "Ann"}', right) is False
    assert json_verdict('{"age": 5, "tags": ["b", "a"], "name": "Ann"}', right, scores=True) == pytest.approx(2 / 3)
    assert json_verdict('{"age": 5, "x": 1, "name": "Ann"}', right, scores=True) == pytest.approx(2 / 4)
    assert json_verdict("no JSON", right, scores=True) == 0
    assert json_verdict("[1]", [1.0]) is True


def test_calls_and_schemas_have_their_own_default_grader():
    tool = {"type": "function", "function": {"name": "f"}}
    assert suited_grader(Question("q", (), ("[]",), options={"tools": [tool]})) == "call"
    assert suited_grader(Question("q", (), ("{}",), options={"response_format": {"type": "json_object"}})) == "json"
    assert make_graders(["json"], score_max=1.0).by_name["json"].scores
    with pytest.raises(GraderError, match="name one of judge:MODEL, python:module:function, command:… or json"):
        make_graders(["call"], score_max=1.0)
