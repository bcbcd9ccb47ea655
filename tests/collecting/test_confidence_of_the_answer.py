"""The confidence beside an answer is that answer's own, and what a run cannot read, or reads otherwise, it says."""

import json
import math

import pytest
from helpers import collecting_runs
from helpers.chat_server import Response, completion, served
from helpers.command_line import run
from helpers.sample_models import lot, write_models
from helpers.server_replies import token

pytestmark = pytest.mark.usefixtures("own_settings")


def collect(place, behave, n, *options):
    """(the result, the document, the rows with answers) of a run with one model."""
    how = "--signal", "choice", *options
    result, again = (
        collecting_runs.collect(place, behave, *how, *more, n=n, names=("small",))[0] for more in (["--json"], [])
    )
    return again, json.loads(result.stdout), collecting_runs.answers(place)


def probe(place, behave):
    """(what is shown, the document) of a probe."""
    with served(behave) as (_, url):
        models = write_models(place / "models.toml", url, ("small",))
        return [run("collect", "--probe", "--models", models, *more).stdout for more in ((), ("--json",))]


def words(text):
    return " ".join(text.split())


def with_tokens(text, *tokens):
    """A completion with these entries as its log-probabilities."""
    body = completion(text)
    body["choices"][0]["logprobs"] = {"content": list(tokens)}
    return Response(body)


def right_of(request):
    prompt = request["messages"][-1]["content"]
    return "AB"[int(prompt.split("?")[0].split()[1]) % 2]


def sampled(request, headers):
    """An answer drawn by the probabilities that it has, as at a temperature of 1."""
    prompt = request["messages"][-1]["content"]
    if not prompt.startswith("Question"):  # a probe
        return with_tokens("B", token("B", math.log(0.2), ("A", math.log(0.8)), ("B", math.log(0.2))))
    share = 0.35 + 0.6 * lot("share", prompt)
    right = right_of(request)
    likely = right if lot("right", prompt) < share else "AB"[right == "A"]
    shares = {likely: math.log(share), "AB"[likely == "A"]: math.log(1 - share)}
    said = likely if lot("said", prompt) < share else "AB"[likely == "A"]
    return with_tokens(said, token(said, shares[said], *shares.items()))


def test_an_answer_has_its_own_confidence(place):
    _, _, rows = collect(place, sampled, 120)
    assert {row["answer"] == row["text"] for row in rows} == {True}
    assert 20 < sum(row["logprob"] < math.log(0.5) for row in rows) < 100


def test_tokens_of_another_kind_are_reported(place):
    def behave(request, headers):
        return with_tokens("A", token("B", -0.1, ("B", -0.1), ("A", -2.4)))

    shown, document = probe(place, behave)
    assert "small: the reply has no log-probabilities: use" in words(shown)
    assert "cannot be used: the tokens are not those of its text)" in words(shown)
    (model,) = json.loads(document)["models"]
    assert (model["logprobs"], model["signals"]) == (False, ["stated"])
    result, document, rows = collect(place, behave, 12, "--concurrency", "1")
    assert rows == []
    assert "the tokens are not those of its text" in words(result.stdout)
    assert "the tokens are not those of its text" in document["models"][0]["error"]
