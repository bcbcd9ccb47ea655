"""Every field of a reply that the client of OpenAI knows, and any that it does not, reaches the client.

The replies are made from the client's own types, so that a field which a newer one adds is sent here too.
"""

import itertools
import json
import types
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
from helpers.chat_server import Response, completion, events_of, sure
from helpers.gateway_service import SURE, UNSURE
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

OF_A_SERVER = {"of_a_server": {"a": [1, None, "é"]}}  # what no type of the client's has, at every place
NUMBERS = itertools.count(3)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def sample(kind, name="x"):
    """A value with every field that a type has."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: sample(field.annotation, name) for name, field in kind.model_fields.items()}
        return fields | OF_A_SERVER
    if origin is Annotated:
        return sample(arguments[0], name)
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return sample(next(one for one in arguments if one is not type(None)), name)
    if origin is list:
        arms = get_args(arguments[0])[0] if get_origin(arguments[0]) is Annotated else arguments[0]
        return [sample(arm, name) for arm in (get_args(arms) if get_origin(arms) is Union else (arms,))]
    if origin is dict:
        return {"a": sample(arguments[1], name)}
    simple = {str: f"the {name}", int: next(NUMBERS), float: -0.5, bool: True, object: [name, None]}
    return simple[kind]


def said_surely(logprobs, letter="B"):
    """Log-probabilities with all their fields, of a letter that is sure."""
    likeliest = {**logprobs["content"][0]["top_logprobs"][0], "token": letter, "logprob": SURE}
    return {**logprobs, "content": [{**likeliest, "top_logprobs": [likeliest]}]}


def make_completion():
    body = sample(ChatCompletion)
    choice = body["choices"][0]
    choice |= {"index": 0, "logprobs": said_surely(choice["logprobs"])}
    choice["message"]["content"] = "B"
    return body


def make_chunks():
    """Chunks with every field: at the beginning, in the middle, at the end, and without a choice."""
    chunks = [sample(ChatCompletionChunk) for _ in range(3)]
    for chunk, content in zip(chunks, ("", "B", ""), strict=True):
        choice = chunk["choices"][0]
        choice |= {"index": 0, "finish_reason": None, "logprobs": said_surely(choice["logprobs"])}
        choice["delta"]["content"] = content
        chunk["usage"] = None
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    more = sample(ChatCompletionChunk) | {"choices": [], "usage": None}
    return [*chunks, more]


WHOLE, CHUNKS, USAGE = make_completion(), make_chunks(), sample(CompletionUsage)
ASKED = {"logprobs": True, "top_logprobs": 5}

#: What the gateway says by itself in every reply.
OWN = {"object", "model", "rcjax"}


def without(body, *names):
    return {name: value for name, value in body.items() if name not in {*OWN, *names}}


@pytest.fixture
def service(service):
    """Start a gateway whose models reply as `by_model` says."""
    service.by_model = {"small": WHOLE, "middle": sure("B", UNSURE), "large": WHOLE}
    service.server.behave = lambda request, _: Response(service.by_model[request["model"].removeprefix("org/")])
    return service


def test_a_completion_has_every_field(service):
    for fields, model, status in (
        ({}, "small", "answered"),
        ({"model": "large"}, "large", "by name"),
        ({"tools": [TOOL]}, "large", "not judged"),
    ):
        reply = service.ask(**ASKED, **fields)
        assert reply.json["rcjax"]["status"] == status
        assert without(reply.json) == without(WHOLE)
        assert (reply.json["object"], reply.json["model"]) == ("chat.completion", model)


def test_a_completion_streamed_at_once_has_every_field(service):
    reply = service.ask(**ASKED, stream=True, stream_options={"include_usage": True})
    said, end, usage, done = reply.events
    assert done == "[DONE]"
    choice = WHOLE["choices"][0]
    assert without(said, "choices", "usage") == without(WHOLE, "choices", "usage")
    for event in (said, end, usage):
        assert (event["object"], event["model"]) == ("chat.completion.chunk", "small")
        assert all(event[name] == WHOLE[name] for name in ("id", "created", "system_fingerprint", "service_tier"))
    calls = [{"index": place, **call} for place, call in enumerate(choice["message"]["tool_calls"])]
    delta = {**choice["message"], "tool_calls": calls}
    assert said["choices"] == [{"index": 0, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}]
    ended = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"], **OF_A_SERVER}
    assert end["choices"] == [ended]
    assert (said["usage"], end["usage"], usage["choices"], usage["usage"]) == (None, None, [], WHOLE["usage"])
    for event in (end, usage):
        ChatCompletionChunk.model_validate(event)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("by", ["policy", "large", "tools"])
def test_chunks_of_a_kept_answer_have_every_field(service, by, counted):
    """Answers of a policy's last model, of a named model, and of the model for requests that are not judged."""
    last_chunk = {**CHUNKS[-1], "choices": [], "usage": USAGE}
    service.by_model |= {"small": sure("A", UNSURE), "large": [*map(_event, [*CHUNKS, last_chunk]), DONE]}
    fields = {"policy": {}, "large": {"model": "large"}, "tools": {"tools": [TOOL]}}[by]
    options = {"stream_options": {"include_usage": True}} if counted else {}
    reply = service.ask(**ASKED, **fields, stream=True, **options)
    *events, done = reply.events
    assert done == "[DONE]"
    assert {(event["object"], event["model"]) for event in events} == {("chat.completion.chunk", "large")}
    assert {(event["id"], event["created"]) for event in events} == {(CHUNKS[0]["id"], CHUNKS[0]["created"])}
    shared = ("id", "created", "usage")
    sent = [without(event, *shared) for event in events[: len(CHUNKS)]]
    assert sent == [without(chunk, *shared) for chunk in CHUNKS]
    others = events[:-1] if counted else events
    assert [event.get("usage", "none") for event in others] == [None if counted else "none"] * (len(CHUNKS) + 1)
    if counted:
        before = 2 if by == "policy" else 0
        sums = {"prompt_tokens": 100 * before, "completion_tokens": before, "total_tokens": 101 * before}
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == USAGE | {name: USAGE[name] + more for name, more in sums.items()}


DONE = b"data: [DONE]\n\n"


def _event(chunk):
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def test_tokens_of_all_models_asked_are_summed(service):
    def used(read, written, **more):
        return {"usage": {"prompt_tokens": read, "completion_tokens": written, **more}}

    details = {"prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": None}, "cost": 0.25, "tier": "a"}
    service.by_model |= {
        "small": sure("A", UNSURE) | used(100, 2, **details),
        "middle": sure("A", UNSURE) | {"usage": None},
        "large": sure("B", SURE) | used(200, 3, total_tokens=250, **details | {"tier": "b"}),
    }
    assert service.ask().json["usage"] == {
        "prompt_tokens": 300,
        "completion_tokens": 5,
        "total_tokens": 352,
        "prompt_tokens_details": {"cached_tokens": 14, "audio_tokens": None},
        "cost": 0.5,
        "tier": "b",
    }


def test_halves_of_a_character_pass_in_two_chunks(service):
    """Some servers cut between the two surrogates of a character: joined, the character is whole."""
    head, *_, end, done = events_of(completion("?"))
    halves = [
        b'{"choices": [{"index": 0, "delta": {"content": "' + half + b'"}}]}' for half in (b"\\ud83d", b"\\ude42")
    ]
    service.by_model |= {"large": [head, *(b"data: " + half + b"\n\n" for half in halves), end, done]}
    reply = service.ask(model="large", stream=True)
    assert json.loads(json.dumps(reply.text)) == "🙂"


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_text_is_passed_on_unchanged_wherever_it_is_cut(service, size):
    """Most servers send text unescaped: characters that Python takes for the end of a line are none here."""
    text = "one\u2028two\u2029three\x85four\x0bfive\x1csix é 人 🙂"
    *events, done = events_of(completion(text))
    sent = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events) + done
    service.by_model |= {"large": [sent[i : i + size] for i in range(0, len(sent), size)]}
    reply = service.ask(model="large", stream=True)
    assert reply.text == text
    assert len(reply.body.decode().splitlines()) == reply.body.count(b"\n")


WAYS = [
    b": a comment\n\ndata: %s\n\n",
    b"data:%s\n\n",
    b"data: %s\r\n\r\n",
    b"event: x\nid: 3\ndata: %s\n\n",
    b"data: %s\n",
]


@pytest.mark.parametrize("way", WAYS)
def test_events_as_other_servers_write_them(service, way):
    *events, _ = events_of(completion("So it is B."))
    sent = [way % json.dumps(event).encode() for event in events]
    for end in ([way % b"[DONE]"], []):
        service.by_model |= {"large": [*sent, *end]}
        reply = service.ask(model="large", stream=True)
        assert (reply.text, reply.events[-1]) == ("So it is B.", "[DONE]")
