"""The tokens of a reply: of the answer and of nothing else, whatever a server tells besides, by every reader."""

import json
import math

import pytest
from helpers.chat_server import Response
from helpers.gateway_service import gateway, make_policy
from helpers.server_replies import FAMILIES, QUESTION, token, total

from rcjax.collecting.questions import Question
from rcjax.collecting.right_answers import is_right_choice
from rcjax.collecting.user_graders import Submission
from rcjax.policy import Rule
from rcjax.policy.decisions import canonical_answer
from rcjax.policy.signals import Choice, MeanLogprob, SignalError
from rcjax.serving.completions import read_reply

CHOICE = Choice(("A", "B"))


def reply_of(text, *content):
    """What a server's tokens, (text, logprob, *top) each, and its text are read as."""
    entries = [entry if isinstance(entry, dict) else token(*entry) for entry in content]
    return read_reply({"choices": [{"message": {"content": text}, "logprobs": {"content": entries}}]})


def misses(read, wanted):
    """The families whose values, by what a reader finds, are not those wanted."""
    return {
        name: (got, right)
        for name, expected in FAMILIES.items()
        if (got := read(expected)) != (right := wanted(expected))
    }


def near(*values):
    return tuple(value if isinstance(value, str | None) else pytest.approx(value, abs=1e-12) for value in values)


def test_signals_read_every_family():
    def read(expected):
        reply = read_reply(expected.body)
        reading, mean = CHOICE.read(reply), MeanLogprob().read(reply)
        return reading.answer, reading.logprob, mean.logprob

    assert misses(read, lambda right: near(right.answer, right.logprob, right.mean)) == {}


def test_a_client_that_asks_for_log_probabilities_gets_as_many_as_there_are():
    body = json.loads(json.dumps(FAMILIES["LiteLLM"].body))
    with gateway(behave=lambda request, headers: Response(body)) as service:
        for top, wanted in ((None, []), ({"A": -0.3}, []), ([{"token": "A", "logprob": -0.3}], ["A"])):
            body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = top
            answer = service.ask(QUESTION, logprobs=True, top_logprobs=1)
            (entry,) = answer.json["choices"][0]["logprobs"]["content"]
            assert (answer.status, [one["token"] for one in entry["top_logprobs"]]) == (200, wanted)


@pytest.mark.parametrize("stream", [False, True])
def test_the_gateway_reads_every_family(stream):
    families = {f"{QUESTION} ({name})": expected for name, expected in FAMILIES.items()}

    def behave(request, headers):
        expected = families[request["messages"][-1]["content"]]
        return Response(expected.events() if request.get("stream") else expected.body)

    got = {}
    alone = {"models": ("small",), "rules": {"small": (Rule(1.0, "answer"),)}, "cost": {"small": 1e-5}}
    policy = make_policy(**alone, calibrations={"small": make_policy().calibrations["small"]})
    with gateway(policy, behave) as service:  # what is kept in any case is handed on while it comes
        for question, expected in families.items():
            model = {"model": "policy", "stream": stream, "messages": [{"role": "user", "content": question}]}
            answer = service.post(model)
            text = answer.text if stream else answer.json["choices"][0]["message"]["content"]
            assert text == expected.body["choices"][0]["message"]["content"]
            row = service.log_rows()[-1]
            got[expected.body["model"]] = (row["answer"], row["logprob"])
    assert got == {right.body["model"]: near(right.answer, right.logprob) for right in FAMILIES.values()}


#: (text, tokens, the texts that are the answer's; None where the tokens are of something else)
ALIGNED = [
    ("A", ["A"], ["A"]),
    ("A", ["A", "\n"], ["A"]),
    ("A\n", ["A", "\n"], ["A", "\n"]),
    ("A", ["A", ""], ["A"]),
    ("A", ["<s>", "▁A", "</s>"], ["▁A"]),
    ("The Sun", ["The", "ĠSun", "<|endoftext|>"], ["The", "ĠSun"]),
    ("A", ["B", " may be a trap", "</think>", "A"], ["A"]),
    ("A", ["<think>", "A", "?", "</think>\n\n", "A", "<｜end▁of▁sentence｜>"], ["A"]),
    (
        "A",
        ["<|channel|>", "analysis", "<|message|>", "B", "<|channel|>", "final", "<|message|>", "A", "<|return|>"],
        ["A"],
    ),
    ("42", ["42", "\n\n", "Q", ":"], ["42"]),  # stopped at "\n\nQ:"
    ("It is 42", ["It", " is", " 42."], ["It", " is", " 42."]),  # stopped at "."
    ("</b>", ["<b>", "</b>"], ["</b>"]),
    ("naïve", ["na", "�", "�", "ve"], ["na", "�", "�", "ve"]),  # halves of a character
    ("é!", ["�", "�", "!"], ["�", "�", "!"]),
    ("!é", ["hm", "</think>", "!", "�", "�", "<|im_end|>"], ["!", "�", "�"]),
    ("naïve", ["na", "<0xC3>", "<0xAF>", "ve"], ["na", "<0xC3>", "<0xAF>", "ve"]),
    ("答案", ["想", "</think>", "答案"], ["答案"]),
    ("A", ["B", "</think>", "C"], None),
    ("A", ["I", " say", " B"], None),
    ("14", ["4"], None),
    ("4", ["14"], None),
]


def test_tokens_are_those_of_the_text():
    got = {}
    for text, tokens, wanted in ALIGNED:
        for told in (False, True) if "�" not in "".join(tokens) and "<0x" not in "".join(tokens) else (False,):
            reply = reply_of(text, *(token(one, -0.5, told=told) for one in tokens))
            read = None if reply.tokens is None else [one.text for one in reply.tokens]
            if read != wanted or (wanted is None) != (reply.tokens_problem is not None):
                got[text, *tokens] = read
    assert got == {}


def test_halves_of_a_character_are_read_by_bytes():
    halves = [{"token": "�", "logprob": -0.5, "bytes": [byte]} for byte in "ï".encode()]
    reply = reply_of("naïve", ("B", -1.0), ("na", -0.5), *halves, ("ve", -0.5))
    assert [len(reply.tokens), MeanLogprob().read(reply).logprob] == [4, -0.5]


def test_numbers_in_place_of_texts_are_read_by_bytes():
    reply = reply_of("A", {**token("A", -0.1), "token": "token_id:32"})
    assert CHOICE.read(reply).answer == "A"


def test_tokens_of_something_else_are_no_confidence():
    for signal in (CHOICE, MeanLogprob()):
        with pytest.raises(SignalError, match=r"rcjax\.policy\.signals\.Votes .*the tokens are not those of its text"):
            signal.read(reply_of("A", ("B", -0.1)))


def test_two_tokens_of_one_text_are_summed():
    cases = [
        ([("A", -0.1), ("B", -3.0), ("A", -4.0)], total(-0.1, -4.0)),
        ([("A", -4.0), ("B", -3.0)], total(-0.1, -4.0)),  # the one that is there is not listed
        ([("B", -3.0)], -0.1),
        ([("A", -0.1004), ("B", -3.0)], -0.1004),  # it is, as rounded otherwise
        ([("A", -0.05), ("B", -3.0)], -0.05),  # more than one cannot be: it is the same
        ([("A", -0.1), ("A", None), ("B", None), ("A", math.nan), ("B", 0.5), None, {"logprob": -1}], -0.1),
        (None, -0.1),
    ]
    for top, wanted in cases:
        entries = [
            dict(zip(("token", "logprob"), one, strict=True)) if isinstance(one, tuple) else one for one in top or ()
        ]
        reading = CHOICE.read(reply_of("A", {"token": "A", "logprob": -0.1, "top_logprobs": top and entries}))
        assert reading.answer == "A"
        assert reading.logprob == pytest.approx(wanted, abs=1e-12), top


def test_a_token_without_a_log_probability_matters_in_the_answer_alone():
    for bad in (None, math.nan, 0.5, -math.inf, 1e-6):
        reply = reply_of("A", ("B", bad), ("</think>", bad), ("A", -0.1))
        assert CHOICE.read(reply).logprob == -0.1
        reply = reply_of("A", ("A", bad))
        if bad in (1e-6, -math.inf):
            assert MeanLogprob().read(reply).logprob == min(0.0, bad)
        else:
            with pytest.raises(SignalError, match="missing, NaN or above 0"):
                MeanLogprob().read(reply)


def test_the_confidence_is_that_of_the_answer_given():
    top = (("A", math.log(0.6)), ("B", math.log(0.3)), ("The", math.log(0.05)))
    sampled = CHOICE.read(reply_of("B", ("B", math.log(0.3), *top)))
    assert (sampled.answer, sampled.logprob) == near("B", math.log(0.3))
    likeliest = CHOICE.read(reply_of("A", ("A", math.log(0.6), *top)))
    assert (likeliest.answer, likeliest.logprob) == near("A", math.log(0.6))
    reading = CHOICE.read(reply_of("The answer is B", ("The", math.log(0.05), *top), (" answer is B", -0.1)))
    assert (reading.answer, reading.logprob) == near("B", math.log(0.3))
    article = CHOICE.read(
        reply_of("A moon, so the answer is (B).", ("A", -0.1, *top), (" moon, so the answer is (B).", -1))
    )
    assert article.answer == "B"
    refusal = CHOICE.read(reply_of("I cannot say.", ("I", math.log(0.05), *top), (" cannot say.", -0.1)))
    assert (refusal.answer, refusal.logprob) == near("", math.log(0.6))
    assert canonical_answer(refusal.answer, "choice") is None
    assert not is_right_choice(Submission(Question("q", (), ("A",), ("A", "B")), "I cannot say.", refusal.answer))
    with pytest.raises(SignalError, match="the choice made, B, is not among the likeliest first tokens"):
        CHOICE.read(reply_of("The answer is B", ("The", -0.1, ("A", -3.0)), (" answer is B", -0.1)))
