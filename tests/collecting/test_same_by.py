"""Which answers are the same, by the graders."""

import pytest

from rcjax.collecting.grader import GraderError
from rcjax.collecting.graders import same_by

CASES = [
    ("exact", "**Paris**", "The answer is Paris.", True),
    ("exact", "The answer is Paris.", "Paris", True),
    ("exact", "Rome", "Paris", False),
    ("choice", "B", "The answer is B.", True),
    ("choice", "(C)", "B", False),
    ("choice", "no idea", "no idea", False),
    ("number", "so 36", "It is 36.0", True),
    ("number", "35", "36", False),
    ("contains", "It is Paris, I think", "Paris", True),
    ("python:sameness_of_tests:alike", "abc", "ABC", True),
]


def test_a_grader_holds_an_answer_to_that_of_the_reference(tmp_path, monkeypatch):
    (tmp_path / "sameness_of_tests.py").write_text("def alike(text, answers):\n    return text.upper() in answers\n")
    monkeypatch.syspath_prepend(tmp_path)
    misses = [case for case in CASES if same_by(case[0])("q", case[1], case[2]) is not case[3]]
    assert misses == []
    assert same_by("answer") is None
    assert same_by("judge:large") is None


@pytest.mark.parametrize("name", ["", "equal", "judge:", "python:", "regex:x", "command:./check"])
def test_what_is_no_grader_of_two_answers_is_refused(name):
    with pytest.raises(GraderError, match="does not tell whether answers are the same"):
        same_by(name)
