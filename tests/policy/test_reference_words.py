"""A reference: the words for what differs from it, and what a policy records of it."""

import pytest

from rcjax.policy.reference import Reference, recorded_reference

LARGE = Reference("large", counts="differences")

SAID = {
    "at most 5 % wrong": "at most 5 % different from large",
    "small: 12.0 % wrong at $18": "small: 12.0 % different from large at $18",
    "one wrong answer costs $0.01": "one answer that differs from large costs $0.01",
    "the best errs on 3.0 %": "the best differs from large on 3.0 %",
    "8.4 points fewer errors": "8.4 points fewer differences",
    "an error of 3 %, error + λ·cost": "a difference of 3 %, difference + λ·cost",
    "Asking small is wrong on 4 %": "Asking small differs from large on 4 %",
    "give --max-error 5%": "give --max-difference 5%",
    # What stays as it is: other errors, names of files and options, and what is told of both.
    "the calibration error is 0.1": "the calibration error is 0.1",
    "Calibration error: how far": "Calibration error: how far",
    "± is one standard error": "± is one standard error",
    "errors.csv, my/error/log, --error-cost 1, wrong-answers.json": (
        "errors.csv, my/error/log, --error-cost 1, wrong-answers.json"
    ),
    "it differs from large in 3 %, errs in 11 %": "it differs from large in 3 %, errs in 11 %",
}


def test_texts_on_errors_are_said_in_words_of_differences():
    misses = {text: LARGE.say(text) for text, words in SAID.items() if LARGE.say(text) != words}
    assert misses == {}
    assert all(Reference("large", counts="errors").say(text) == text for text in SAID)
    assert Reference(r"a\1b").say("5 % wrong") == r"5 % different from a\1b"


def test_what_is_said_once_is_not_said_again():
    assert [text for text in map(LARGE.say, SAID) if LARGE.say(text) != text] == []


def test_a_policy_records_it_and_older_ones_have_none():
    told = Reference("large", "exact", "differences")
    assert recorded_reference({"same_as": told.to_json()}) == told
    assert recorded_reference({}) is None


def test_what_can_be_no_reference_is_refused():
    for arguments in ((3,), ("",), ("large", None), ("large", "exact", "both")):
        with pytest.raises(ValueError, match="must be"):
            Reference(*arguments)


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ("large", "provenance.same_as"),
        ({"same": "exact"}, "provenance.same_as.model"),
        ({"model": "large", "same": 3}, "provenance.same_as.same"),
        ({"model": "large", "counts": "both"}, "provenance.same_as.counts"),
    ],
)
def test_what_is_damaged_in_a_record_is_named(record, where):
    with pytest.raises(ValueError, match=where.replace(".", r"\.")):
        recorded_reference({"same_as": record})
