"""Tool calls in streams whose chunks do not say, or say wrongly, which call each belongs to."""

import asyncio
import json

import pytest
from helpers.chat_server import Response
from helpers.gateway_service import gateway

from rcjax.serving.completions import Assembly, read_chunks
from rcjax.serving.usage import CallUsage

ROME, UTC, OSLO = '{"city":"Rome"}', '{"tz":"UTC"}', '{"city":"Oslo"}'
WEATHER_AND_CLOCK = [("weather", ROME), ("clock", UTC)]


def chunk(name=None, arguments="", **more):
    return {**more, "function": {**({} if name is None else {"name": name}), "arguments": arguments}}


def halves(name, arguments, **more):
    """A call that begins with its name, and goes on with its arguments in two chunks."""
    return [[chunk(name, **more)], [chunk(arguments=arguments[:5], **more)], [chunk(arguments=arguments[5:], **more)]]


#: By what servers do: the calls of each delta, and the calls that they are.
STREAMS = {
    "index 0 for all, new ids (Gemini)": (
        [[chunk("weather", ROME, index=0, id="a")], [chunk("clock", UTC, index=0, id="b")]],
        WEATHER_AND_CLOCK,
    ),
    "index 0 for all, no ids": ([[chunk("weather", ROME, index=0), chunk("clock", UTC, index=0)]], WEATHER_AND_CLOCK),
    "no index": ([[chunk("weather", ROME, id="a"), chunk("clock", UTC, id="b")]], WEATHER_AND_CLOCK),
    "no index, one function, no ids": (
        [[chunk("weather", ROME)], [chunk("weather", OSLO)]],
        [("weather", ROME), ("weather", OSLO)],
    ),
    "no index, no id, without arguments": ([[chunk("ping")], [chunk("pong")]], [("ping", ""), ("pong", "")]),
    "no index, in chunks": ([*halves("weather", ROME), *halves("clock", UTC)], WEATHER_AND_CLOCK),
    "no index, an id in each chunk, mingled": (
        [
            delta
            for both in zip(halves("weather", ROME, id="a"), halves("clock", UTC, id="b"), strict=True)
            for delta in both
        ],
        WEATHER_AND_CLOCK,
    ),
    "index null": (
        [[chunk("weather", ROME, index=None, id="a")], [chunk("clock", UTC, index=None, id="b")]],
        WEATHER_AND_CLOCK,
    ),
    "id and name in each chunk": (
        [[chunk("weather", ROME[:5], index=0, id="a")], [chunk("weather", ROME[5:], index=0, id="a")]],
        WEATHER_AND_CLOCK[:1],
    ),
    "a new id for each chunk (vLLM)": (
        [
            [chunk("weather", index=0, id="1")],
            *[[chunk(arguments=ROME[i], index=0, id=f"_{i}")] for i in range(len(ROME))],
        ],
        WEATHER_AND_CLOCK[:1],
    ),
    "empty ids and names after the first": (
        [[chunk("weather", ROME[:5], index=0, id="a")], [chunk("", ROME[5:], index=0, id="")]],
        WEATHER_AND_CLOCK[:1],
    ),
    "numbered from 1, the wrong way round": (
        [[chunk("weather", ROME, index=2)], [chunk("clock", UTC, index=1)]],
        WEATHER_AND_CLOCK,
    ),
    "arguments as an object": ([[chunk("weather", {"city": "Rome"}, id="a")]], [("weather", '{"city": "Rome"}')]),
}


def split_into_chunks(deltas, index=0):
    """The events of a stream with these calls."""
    events = [
        {"id": "1", "created": 1, "choices": [{"index": index, "delta": {"role": "assistant", "tool_calls": calls}}]}
        for calls in deltas
    ]
    end = {"id": "1", "created": 1, "choices": [{"index": index, "delta": {}, "finish_reason": "tool_calls"}]}
    return [*events, end, b"data: [DONE]\n\n"]


def called(calls):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize("name", [*STREAMS])
def test_chunks_of_tool_calls_are_joined(name):
    deltas, expected = STREAMS[name]

    async def lines():
        for event in split_into_chunks(deltas):
            yield event.decode().strip() if isinstance(event, bytes) else f"data: {json.dumps(event)}"

    async def read():
        whole, numbers = Assembly(), {}
        async for chunk in read_chunks(lines()):
            numbered = whole.add(chunk)
            for call in numbered["choices"][0]["delta"].get("tool_calls") or ():  # as clients put them together
                numbers[call["index"]] = numbers.get(call["index"], "") + call["function"]["arguments"]
        return called(whole.completion(CallUsage())["choices"][0]["message"]["tool_calls"]), [*numbers.values()]

    assert asyncio.run(read()) == (expected, [arguments for _, arguments in expected])


@pytest.mark.parametrize("index", [0, None])
def test_calls_reach_clients_of_both_apis(index):
    """Two calls became one, with arguments that are no JSON; a choice without a number was an empty answer."""
    deltas, expected = STREAMS["index 0 for all, new ids (Gemini)"]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "clock")]
    with gateway(None, lambda *_: Response(split_into_chunks(deltas, index))) as service:
        reply = service.ask(model="large", tools=tools, stream=True)
        chunks = [
            call
            for event in reply.events[:-1]
            for choice in event["choices"]
            for call in choice["delta"].get("tool_calls") or ()
        ]
        assert [(call["index"], *called([call])[0]) for call in chunks] == [
            (number, *call) for number, call in enumerate(expected)
        ]
        flat = [{"type": "function", **tool["function"]} for tool in tools]
        asked = {"model": "large", "input": "Where?", "tools": flat, "stream": True}
        lines = service.post(asked, "/v1/responses").body.decode().split("\n")
        last = json.loads([line for line in lines if line.startswith("data: ")][-1][6:])["response"]
        assert last["status"] == "completed"
        assert [(item["name"], item["arguments"]) for item in last["output"]] == expected
