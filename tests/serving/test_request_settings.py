"""How models are asked is in each line of a service's log, and a policy that is tuned on it keeps it; no secrets."""

import asyncio
import dataclasses
import json
import math
from decimal import Decimal

import polars as pl
import pytest
from helpers.chat_server import Response, completion, serving, sure
from helpers.command_line import run
from helpers.scripted_cascade import POLICY, PRICES, make_cascade
from openai import AsyncOpenAI

import rcjax
from rcjax._base.tokens import Price
from rcjax.policy import signals
from rcjax.policy.signals.signal import (
    SIGNAL_NAMES,
    ChoiceNormaliser,
    describe_difference,
    signal_by_name,
    signal_from_record,
)
from rcjax.serving.call_log import Call, CallLog, Handling, Query
from rcjax.serving.cascade import Cascade
from rcjax.serving.models_file import ServedModel, format_request_settings, split_options

PRICE = Price(Decimal("0.1"), Decimal("0.4"))
SIGNALS = [
    signals.Choice(("A", "B"), top=5),
    signals.Verification(yes=("J",), second_options={"max_tokens": 2}),
    signals.Votes(samples=3),
    signals.Votes(normalise=ChoiceNormaliser(("A", "B"))),
    signals.Stated(question=None),
    *(signal_by_name(name, choices) for name in SIGNAL_NAMES for choices in ((), ("A", "B"))),
]


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: type(signal).__name__)
def test_a_record_makes_the_signal_again(signal):
    record = json.loads(format_request_settings(signal, {"temperature": 0.5}, PRICE))
    assert signal_from_record(record) == signal
    assert describe_difference(record, signal) is None
    assert (record["options"], record["prices"]) == ({"temperature": 0.5}, {"input": 0.1, "output": 0.4})
    assert "prices" not in json.loads(format_request_settings(signal, {}, None))


class Own:
    """A signal of the user's."""

    options = {"logprobs": True}  # noqa: RUF012
    second_options = None

    def follow_up(self, messages, reply):
        return None

    def read(self, reply, second):
        return signals.Reading("A", -0.1, "A")


def test_neither_secrets_nor_what_json_cannot_hold_is_kept():
    secret = {"extra_headers": {"Authorization": "Bearer s3cret"}, "extra_query": {"key": "s3cret"}}
    hidden = {**secret, "extra_body": {"api_key": "s3cret", "think": False}}
    odd = {"response_format": Own, "stop": object(), "seed": math.nan, "logit_bias": {1: 2, "a": 3}}
    text = format_request_settings(
        signals.Verification(second_options={**secret, "max_tokens": 1}), {**hidden, **odd}, None
    )
    record = json.loads(text)
    assert "s3cret" not in text
    assert record["options"] == {"extra_body": {"think": False}}
    assert "second_options" not in record
    assert describe_difference(record, signals.Verification(second_options={**secret, "max_tokens": 1})) is None


def test_a_policy_is_not_served_by_another_signal_than_that_of_its_log():
    record = json.loads(format_request_settings(signals.Choice(("A", "B")), {}, PRICE))
    policy = dataclasses.replace(POLICY, provenance={**POLICY.provenance, "request_settings": {"small": record}})
    with pytest.raises(ValueError, match=r"signal of small: .* signal is 'stated', not 'choice'"):
        Cascade(policy, AsyncOpenAI(api_key="k"), signal=signals.Stated())


def answers(request, headers):
    """The small model is right on even queries, and surer of those; the large one always."""
    i, small = int(request["messages"][0]["content"]), request["model"] == "small"
    right = not small or i % 2 == 0
    return Response(sure("A" if right else "B", math.log(0.9 - 0.3 * (i % 2) - 0.01 * (i % 7))))


def served(path, n=60, **options):
    """A log of shadow queries to all models."""

    async def main():
        async with serving(answers) as (_, client):
            with CallLog(path) as log:
                settings = {"signal": signals.Choice(("A", "B")), "options": {"max_tokens": 1}, **options}
                cascade = make_cascade(POLICY, client, log=log, shadow=1.0, **settings)
                await cascade.ask_all((i, str(i)) for i in range(n))

    asyncio.run(main())
    return path


@pytest.mark.thorough
def test_the_loop_keeps_the_settings_of_models(tmp_path):
    """Service, log, tuning, the next service: which needs no signal, and refuses another."""
    path = served(
        tmp_path / "calls.jsonl", models={"small": ServedModel("small", "small", options={"temperature": 0.25})}
    )
    labels, out = tmp_path / "labels.csv", tmp_path / "policy.json"
    labels.write_text("query,answer\n" + "".join(f"{i},A\n" for i in range(60)))
    result = run(
        *("tune", path, "--labels", labels, "--task", "choice", "--max-error", "30%", "--no-bands", "--cascade", "all"),
        *("--out", out),
    )
    assert result.exit_code == 0, result.stderr
    policy = rcjax.load_policy(out)
    for model in policy.models:
        record = policy.provenance["request_settings"][model]
        options = {"max_tokens": 1} | ({"temperature": 0.25} if model == "small" else {})
        assert record["options"] == options
        assert record["prices"] == PRICES[model]
        assert signal_from_record(record) == signals.Choice(("A", "B"))
    client = AsyncOpenAI(api_key="x")
    endpoint = Cascade(policy, client)._model_caller.endpoints[policy.models[0]]
    assert endpoint.signal == signals.Choice(("A", "B"))
    assert endpoint.options["max_tokens"] == 1
    with pytest.raises(ValueError, match="the policy was tuned on another one"):
        Cascade(policy, client, signal=signals.MeanLogprob())


def test_a_signal_that_changed_is_refused_and_options_of_answers_that_are_not_used_count_for_nothing(tmp_path):
    labels = pl.DataFrame({"query": list(range(60)), "answer": ["A"] * 60})
    path = served(tmp_path / "calls.jsonl", n=30)
    with CallLog(path) as log:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            asked = json.loads(row["request_settings"]) | {"options": {"max_tokens": 2}}
            log.write(again(row, request_settings=json.dumps(asked)))
    with pytest.warns(rcjax.logs.LeftOutWarning):
        recorded = rcjax.read_log(path, labels=labels, task="choice").request_settings
    assert all(record["options"] == {"max_tokens": 1} and record["signal"] == "choice" for record in recorded.values())
    with CallLog(path) as log:
        log.write(again(row, query="another", request_settings=json.dumps({"signal": "mean"})))
    with pytest.raises(rcjax.LogError, match="was asked for its confidence in several ways, choice, mean"):
        rcjax.read_log(path, labels=labels, task="choice")


def again(row, **changes):
    """A call from its line."""
    fields = {name: value for name, value in row.items() if name in Call.__slots__}
    query = Query(changes.pop("query", row["query"]), (), handling=Handling(is_shadow_query=row["shadow"]))
    return Call(**{"text": None, "confidence": row["calibrated"], **fields, "query": query, **changes})


def test_a_failed_call_records_its_settings(tmp_path):
    async def main():
        async with serving(lambda request, headers: Response(completion(""))) as (_, client):
            with CallLog(tmp_path / "calls.jsonl") as log, pytest.raises(rcjax.CascadeError):
                await Cascade(POLICY, client, signal=Own(), log=log).ask("?", "q")

    asyncio.run(main())
    rows = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [json.loads(row["request_settings"])["signal"] for row in rows] == ["Own"] * 3


#: Where a client, or a file of models, may put what was asked, or a key.
HIDDEN = {
    "documents": {"documents": [{"text": "s3cret"}]},
    "api base": {"extra_body": {"api_base": "http://s3cret"}},
    "a key in a list": {"extra_body": {"models": [{"api_key": "s3cret"}]}},
    "tools": {"tools": [{"type": "mcp", "headers": {"Authorization": "s3cret"}}]},
    "the name of a field": {"extra_body": {"s3cret": 1}},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"description": "s3cret"}}},
    "text for a number": {"temperature": "s3cret: a text with spaces"},
    "text in a template": {"extra_body": {"chat_template_kwargs": {"enable_thinking": False, "persona": "s3cret"}}},
    "long ends": {"stop": ["s3cret" * 10]},
    "numbers that are large": {"seed": 10**4000},
    "many ends": {"stop": ["s3cret"] * 100},
    "nested": {"extra_body": {"options": {"top_k": 1, "deep": {"options": {"x": "s3cret"}}}}},
}

#: What is kept as it is: by it a policy is asked again.
KEPT = [
    {"max_tokens": 1, "temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["\n", "##"], "n": 1},
    {"reasoning_effort": "low", "response_format": {"type": "json_object"}, "logit_bias": {"17": -100}},
    {"extra_body": {"top_k": 2, "think": False, "chat_template_kwargs": {"enable_thinking": False}}},
    {"extra_body": {"options": {"num_ctx": 4096}, "reasoning": {"effort": "low", "exclude": True}}},
    {"extra_body": {"thinking": {"type": "enabled", "budget_tokens": 100}, "stop_token_ids": [1, 2]}},
]


def test_options_outside_the_list_become_a_digest():
    for name, options in HIDDEN.items():
        text = format_request_settings(signals.Choice(), {"max_tokens": 1, **options}, PRICE)
        assert ("s3cret" in text, len(text) < 1000) == (False, True), name
        record = json.loads(text)
        assert (len(record["others"]), record["options"]["max_tokens"]) == (16, 1), name
        assert signal_from_record(record) == signals.Choice()
        assert split_options(record["options"]) == (record["options"], None)


def test_no_options_make_a_record_long():
    """Options of sampling within each other made lines of any length; each is another way of asking."""
    nested = {}
    for _ in range(30):
        nested = {"options": nested, "stop": ["x" * 32] * 64}
    wide = {name: ["A" * 32] * 64 for name in ("effort", "min_p", "priority", "seed", "top_k", "type", "verbosity")}
    texts = [
        format_request_settings(signals.Choice(), {"extra_body": one}, PRICE)
        for one in (nested, wide, wide | {"seed": 1})
    ]
    assert max(map(len, texts)) < 16_000
    assert len({json.loads(text)["others"] for text in texts}) == 3


def test_sampling_options_are_recorded():
    assert [split_options(options) for options in KEPT] == [(options, None) for options in KEPT]


def test_other_options_have_other_digests_and_another_key_has_not():
    one, other = ({"documents": [text], "extra_headers": {"a": text}} for text in "ab")
    assert split_options(one) != split_options(other)
    assert split_options(one) == split_options({"documents": ["a"]})
    assert split_options({"extra_body": {"api_key": "k"}}) == ({}, None)
