"""Scores: the words for what is lost of them, and what a policy records."""

import pytest

from rcjax.policy.scores import Scores, recorded_scores

SAID = {
    "at most 5 % wrong": "at most 5 % of the score lost",
    "small: 12.0 % wrong at $18": "small: 12.0 % of the score lost at $18",
    "one wrong answer costs $0.01": "a full score lost costs $0.01",
    "the policy errs on 3.0 % of these queries": "the policy loses 3.0 % of the score of these queries",
    "Asking small is wrong on 4.1 % of the queries, at $2": "Asking small loses 4.1 % of the score, at $2",
    "to be wrong on 4.1 % (90 % interval 3 to 5 %)": "to lose 4.1 % (90 % interval 3 to 5 %) of the score",
    "of 90 queries held out 3.0 % were answered wrongly": "of 90 queries held out 3.0 % of the score were lost",
    "8.4 points fewer errors": "8.4 points less score lost",
    "an error of 3 %, error + λ·cost": "a score loss of 3 %, score lost + λ·cost",
    "expected error": "expected score lost of 10",
    # What stays as it is.
    "the calibration error is 0.1": "the calibration error is 0.1",
    "± is one standard error": "± is one standard error",
    "errors.csv, --max-error 5%, --error-cost 1": "errors.csv, --max-error 5%, --error-cost 1",
}


def test_texts_on_errors_are_said_in_words_of_scores():
    say = Scores(10.0).say
    assert {text: say(text) for text, words in SAID.items() if say(text) != words} == {}
    assert [text for text in map(say, SAID) if say(text) != text] == []
    assert Scores().say("error") == "score lost"


def test_a_policy_records_the_scale_and_older_ones_have_none():
    assert recorded_scores({"scores": Scores(10.0).to_json()}) == Scores(10.0)
    assert recorded_scores({}) is None
    for record in ({"most": 0}, {"most": "ten"}, 10):
        with pytest.raises(ValueError, match=r"provenance\.scores"):
            recorded_scores({"scores": record})
