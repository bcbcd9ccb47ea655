"""Signals: each function against its law, what endpoints send, and what is refused."""

import math

import pytest
from helpers.bare_python import run_bare
from hypothesis import given, strategies as st

from rcjax.policy.signals import (
    Choice,
    MeanLogprob,
    Reading,
    Reply,
    SignalError,
    Stated,
    Token,
    Verification,
    Votes,
    choice_logprob,
    normalise_answer,
    stated_confidence,
    verification_logprob,
    vote_share,
)
from rcjax.policy.signals.answers import MAX_ANSWER_LENGTH, final_answer

QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of {answer}?"}]


def token(text, **probabilities):
    return Token(text, math.log(probabilities[text]), {each: math.log(p) for each, p in probabilities.items()})


def top(first, spellings):
    return Token(first, spellings[first], spellings)


# Multiple choice


def test_spellings_of_a_choice_are_summed():
    spellings = {each: math.log(0.1) for each in ("A", " A", "(A", "a", "A.", "▁A", "ĠA", "A)", "**A")}
    spellings["B"] = math.log(0.1)
    choice, logprob = choice_logprob([top("A", spellings)], "ABCD")
    assert choice == "A"
    assert math.exp(logprob) == pytest.approx(0.9)


@given(weights=st.lists(st.floats(1e-6, 1), min_size=5, max_size=5))
def test_the_choice_made_is_the_likeliest_and_is_not_renormalised(weights):
    shares = dict(zip(["A", "B", "C", "D", "I"], [w / sum(weights) for w in weights], strict=True))
    choice, logprob = choice_logprob([token("I", **shares)], "ABCD")
    assert shares[choice] == pytest.approx(max(shares[each] for each in "ABCD"), rel=1e-12)  # a tie, to rounding
    assert math.exp(logprob) == pytest.approx(shares[choice])


def test_next_to_one_no_digit_is_lost_and_none_is_beyond():
    for top_tokens, logprob in (({"A": -1e-300, "a": -9999.0}, -1e-300), ({"A": 0.0, " A": -1e-9}, 0.0)):
        assert choice_logprob([top("A", top_tokens)], "AB") == ("A", logprob)


def test_tokens_without_a_letter_are_passed_through_with_their_probability():
    first = token("(", **{"(": 0.6, "A": 0.3, "B": 0.1})
    second = token("A", **{"A": 0.5, "B": 0.5})
    third = token("B", B=1.0)  # comes after the choice: no business of ours
    choice, logprob = choice_logprob([first, second, third], "AB")
    assert choice == "A"
    assert math.exp(logprob) == pytest.approx(0.3 + 0.6 * 0.5)


@given(
    first=st.dictionaries(st.sampled_from(["A", " B", "C", "(", "**", "The"]), st.floats(0.01, 1), min_size=1),
    second=st.dictionaries(st.sampled_from(["A", "b", "C.", "So"]), st.floats(0.01, 1), min_size=1),
)
def test_probabilities_of_choices_sum_to_at_most_one(first, second):
    tokens = []
    for each in (first, second):
        shares = {text: p / sum(each.values()) for text, p in each.items()}
        tokens.append(token(max(shares, key=shares.get), **shares))
    total = 0.0
    for name in "ABC":
        try:
            total += math.exp(choice_logprob(tokens, [name])[1])
        except SignalError:
            continue
    assert total <= 1 + 1e-9


@pytest.mark.parametrize("tokens", [None, ()])
def test_missing_log_probabilities_name_the_alternatives(tokens):
    for signal in (Choice(), Verification(), MeanLogprob()):
        with pytest.raises(SignalError, match=r"no log-probabilities: .*Votes or rcjax\.policy\.signals\.Stated"):
            signal.read(Reply(("A",), tokens), Reply(("Y",), tokens))


def test_an_answer_that_does_not_begin_with_a_choice_is_refused():
    with pytest.raises(SignalError, match="none of the choices A, B is among the likeliest first tokens"):
        choice_logprob([token("The", The=1.0)], "AB")


# Verification


def test_spellings_of_yes_are_summed():
    shares = {"Y": 0.3, "Yes": 0.2, " y": 0.1, "N": 0.25, "no": 0.05, "Maybe": 0.1}
    assert math.exp(verification_logprob([token("Y", **shares)])) == pytest.approx(0.6)


def test_only_a_no_is_a_confidence_of_zero():
    assert verification_logprob([token("N", N=1.0)]) == -math.inf
    with pytest.raises(SignalError, match="neither Y nor N"):
        verification_logprob([token("Well", Well=1.0)])


def test_the_second_question_holds_the_first_and_the_answer_as_they_are():
    messages, options = Verification().follow_up(QUESTION, Reply(("It is {question}.",)))
    (message,) = messages
    assert "Question:\nCapital of {answer}?" in message["content"]
    assert "Proposed answer:\nIt is {question}." in message["content"]
    assert options == {"max_tokens": 1, "temperature": 0.0, "logprobs": True, "top_logprobs": 20}
    own = Verification(template="{answer}? [J/N]", yes=("J",), second_options={"max_tokens": 2}, top=5)
    messages, options = own.follow_up(QUESTION, Reply(("Rom",)))
    assert messages == [{"role": "user", "content": "Rom? [J/N]"}]
    assert options == {"max_tokens": 2, "logprobs": True, "top_logprobs": 5}
    second = Reply(("J",), (token("J", J=0.5, N=0.5),))
    assert own.read(Reply(("Rom",)), second) == Reading("Rom", math.log(0.5))


def test_a_question_in_parts_is_joined():
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages, _ = Verification().follow_up([{"role": "user", "content": parts}], Reply(("A cat",)))
    assert "What is this?" in messages[0]["content"]
    assert "x" not in messages[0]["content"].split("Question:")[1].split("Proposed")[0].split()


# Votes


def test_votes_are_counted_in_normalised_form():
    assert vote_share(["b", "A", "a ", "c"]) == ("A", 0.5)
    assert vote_share(["b", "a"]) == ("b", 0.5)
    assert vote_share(["x=1", "y=1", None, ""], normalise=lambda text: text[-1:]) == ("x=1", 0.5)
    with pytest.raises(SignalError, match="no sample has an answer"):
        vote_share([None, " "])


@given(answers=st.lists(st.sampled_from(["a", "A ", "b", "", None, "c"]), min_size=1))
def test_the_share_of_the_winner_is_the_largest(answers):
    plain = [normalise_answer(each or "") for each in answers]
    if not any(plain):
        return
    winner, share = vote_share(answers)
    assert share == max(plain.count(each) for each in plain if each) / len(answers)
    assert plain.count(normalise_answer(winner)) / len(answers) == share


def test_votes_read_the_samples_of_a_reply():
    assert Votes(samples=3).options == {"n": 3, "temperature": 0.7}
    assert Votes(samples=2).read(Reply(("Rome", "rome"))) == Reading("rome", 0.0, "Rome")
    with pytest.raises(SignalError, match="1 of 5 samples: the endpoint ignores n"):
        Votes().read(Reply(("Rome",)))


# Stated confidences


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("85%", 0.85),
        ("85％", 0.85),
        (".85", 0.85),
        ("about 85 percent", 0.85),
        ("Confidence: 85/100", 0.85),
        ("confidence level is 99.5 %", 0.995),
        ("Confidence (0-100%): 85%", 0.85),
        ("The answer is 42 of 100 things.\nConfidence: 0.7", 0.7),
        ("Confidence: 85% (85/100)", 0.85),
        ("8 out of 10", 0.8),
        ("It's 50/50.", 0.5),
        ("Confidence: 30/70", 0.3),
        ("50 out of 50", 1.0),
        ("0", 0.0),
    ],
)
def test_stated_confidences_are_read_in_each_form(text, value):
    assert stated_confidence(text) == pytest.approx(value, rel=1e-12)


@given(number=st.integers(0, 1000))
def test_percentages_and_decimals_agree(number):
    assert stated_confidence(f"{number / 10}%") == pytest.approx(number / 1000)
    assert stated_confidence(f"Confidence: {number}/1000") == pytest.approx(number / 1000)
    assert stated_confidence(f"I'd say {number / 10:.1f} % I think") == pytest.approx(number / 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Confidence: high", "states no confidence"),
        ("70-80%", "states no confidence"),
        ("Confidence 95%-99%", "states no confidence"),
        ("1,000%", "states no confidence"),
        ("12/10/2020", "states no confidence"),
        ("I am 85% sure; 10% of people know", r"more than one confidence \(0\.1, 0\.85\)"),
        ("1", "1 could be on any scale"),
        ("Confidence: 85", '85 could be on any scale: ask for "85%"'),
        ("Confidence: 1.2", "1.2 is above 1"),
        ("5/0", "above 1"),
    ],
)
def test_unclear_confidences_are_refused(text, message):
    with pytest.raises(SignalError, match=message):
        stated_confidence(text)


pieces = st.sampled_from(["confidence", ":", " ", "8", "5", ".", "%", "/", "-", "10"])


@given(text=st.text() | st.lists(pieces).map("".join))
def test_any_text_is_a_probability_or_refused_in_one_line(text):
    problem, value = "", 0.0
    try:
        value = stated_confidence(text)
    except SignalError as error:
        problem = str(error)
    assert 0 <= value <= 1
    assert len(problem.splitlines()) <= 1


def test_the_second_question_comes_after_the_answer():
    messages, options = Stated().follow_up(QUESTION, Reply(("Rome",)))
    assert messages[:2] == QUESTION
    assert messages[2] == {"role": "assistant", "content": "Rome"}
    assert "percentage" in messages[3]["content"]
    assert options["max_tokens"] == 10
    assert Stated().read(Reply(("Rome",)), Reply(("85%",))) == Reading("Rome", math.log(0.85))
    assert Stated().read(Reply(("Rome",)), Reply(("0%",))).logprob == -math.inf
    assert Stated(question=None).follow_up(QUESTION, Reply(("Rome",))) is None
    assert Stated(question=None).read(Reply(("Rome. Confidence: 50%",))).logprob == math.log(0.5)


# Mean log-probability


def test_the_beginning_and_the_end_of_a_long_reply_are_read():
    half = MAX_ANSWER_LENGTH // 2
    text = "a" * half + "b" * MAX_ANSWER_LENGTH + "c" * half
    assert final_answer(text) == f"{'a' * half}\n\n{'c' * half}"


def test_mean_logprob_is_the_mean_over_tokens():
    reply = Reply(("Paris",), (Token("Par", -0.25), Token("is", -0.75)))
    assert MeanLogprob().options == {"logprobs": True}
    assert MeanLogprob().read(reply) == Reading("Paris", -0.5)


def test_signals_need_only_the_standard_library():
    program = "from rcjax.policy.signals import *; print(Stated().read(Reply(('x',)), Reply(('50%',))))"
    assert run_bare(program) == repr(Reading("x", math.log(0.5)))
