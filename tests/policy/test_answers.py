"""When two answers are the same."""

import time

import pytest
from hypothesis import given, strategies as st

from rcjax.policy.decisions import ANSWER_FORMS, canonical_answer

SAME = {
    "text": [
        ("The Seine", " the  SEINE. "),
        ("1,000", "1000.0"),
        ("-5", "−5.0"),
        (".50", "0.5"),
        ("“Paris”", "paris"),
        ("Ｐａｒｉｓ", "Paris"),
        ("+7", "007"),
        ("-0", "0.00"),
    ],
    "choice": [
        ("B", "(b)"),
        ("B) Jupiter", "The answer is B."),
        ("Answer: C", "c"),
        ("A\x1b_", "a"),
    ],
    "key": [("B", "b"), ("1,000", "1000")],
}
DIFFERENT = {
    "text": [
        ("5", "-5"),
        ("1.5", "15"),
        ("1,000", "1,00"),
        ("Paris", "Paris, France"),
        ("version 1.2.3", "version 1.2.30"),
        ("√2", "2"),
        ("-√2", "2"),
        ("-x", "x"),
        ("C++", "C"),
        ("C#", "C"),
        ("A+", "A-"),
        ("A-", "A"),
    ],
    "choice": [("A", "B"), ("A planet", "A"), ("Jupiter", "B"), ("ab", "a")],
    "key": [("B", "B) Jupiter")],
}


@pytest.mark.parametrize(("how", "one", "other"), [(how, *pair) for how in SAME for pair in SAME[how]])
def test_answers_that_are_the_same(how, one, other):
    assert canonical_answer(one, how) == canonical_answer(other, how) is not None


@pytest.mark.parametrize(("how", "one", "other"), [(how, *pair) for how in DIFFERENT for pair in DIFFERENT[how]])
def test_answers_that_are_not(how, one, other):
    assert canonical_answer(one, how) != canonical_answer(other, how)


@pytest.mark.parametrize("how", ANSWER_FORMS)
@pytest.mark.parametrize("nothing", [None, "", " \n\t"])
def test_no_answer_is_none(how, nothing):
    assert canonical_answer(nothing, how) is None


@given(answer=st.text(max_size=40), how=st.sampled_from(ANSWER_FORMS))
def test_a_comparable_form_is_its_own_form(answer, how):
    """A service may store the form of an answer, and compare it with a whole answer."""
    left = canonical_answer(answer, how)
    assert left is None or canonical_answer(left, how) == left


@given(number=st.decimals(-(10**12), 10**12, places=3))
def test_a_number_is_one_answer_however_it_is_written(number):
    forms = [f"{number}", f"{number:,}", f"{number}000", f" {number:,}. ", f"({number})"]
    assert len({canonical_answer(form, "text") for form in forms}) == 1


@pytest.mark.parametrize("text", ["1," * 20_000, "((" * 40_000, "answer " * 20_000, "a" * 100_000, "-" * 50_000])
def test_a_long_answer_takes_no_long_time(text):
    start = time.process_time()
    assert canonical_answer(text, "choice")
    assert canonical_answer(text, "text")
    assert time.process_time() - start < 5
