"""Chunks that equal an earlier one but for their text are read, and sent, as if they were parsed."""

import asyncio
import json

import pytest
from helpers.chat_server import Response
from helpers.gateway_service import gateway

from rcjax.serving.completions import Assembly, read_chunks
from rcjax.serving.text_chunks import _TRIES, Pattern, Patterns, TextChunk
from rcjax.serving.usage import CallUsage

TEXTS = ["Par", "is", ' "quoted" \\ ', "\n\t", "Größe", "😀", "\ud83d", "\u2028", "\0", "", '{"content": "x"}', "\x7f/"]


def chunk_of(text, **fields):
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}


def changed(text, **changes):
    """A chunk whose choice says something else besides its text."""
    chunk = chunk_of(text)
    chunk["choices"][0] |= changes
    return chunk


TOOL = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}
STREAMS = {
    "texts": [chunk_of(text) for text in TEXTS],
    "obfuscated": [chunk_of(text, usage=None, obfuscation="x" * len(text)) for text in TEXTS],
    "obfuscated before": [{"obfuscation": "ab", **chunk_of(text)} for text in TEXTS],
    "another head": [chunk_of(text, id=f"c{number // 3}") for number, text in enumerate(TEXTS)],
    "every head another": [chunk_of(text, id=f"c{number}") for number, text in enumerate(TEXTS * 3)],
    "its text in its id": [chunk_of(text, id='"content": "Par"') for text in TEXTS],
    "a field of this name": [chunk_of(text, content="Par") for text in TEXTS],
    "with a role": [changed(text, delta={"role": "assistant", "content": text}) for text in TEXTS],
    "null": [changed(text, delta={"content": None if place % 3 else text}) for place, text in enumerate(TEXTS)],
    "a number": [changed(text, delta={"content": place if place % 3 else text}) for place, text in enumerate(TEXTS)],
    "another choice": [changed(text, index=place % 2) for place, text in enumerate(TEXTS)],
    "log-probabilities": [
        changed(text, logprobs={"content": [{"token": text, "logprob": -1.0, "top_logprobs": []}]}) for text in TEXTS
    ],
    "a tool": [changed(text, delta={"content": text, "tool_calls": [TOOL]}) for text in TEXTS],
    "usage": [chunk_of(text, usage={"prompt_tokens": 7, "completion_tokens": n}) for n, text in enumerate(TEXTS)],
}
MANY_TEXTS = {"texts", "obfuscated", "obfuscated before", "another head", "with a role", "its text in its id"}
END = changed("", delta={}, finish_reason="stop")
WRITTEN = {
    "ASCII": json.dumps,
    "UTF-8": lambda chunk: json.dumps(chunk, ensure_ascii=False, separators=(",", ":")),
    "spaces": lambda chunk: json.dumps(chunk, separators=(" , ", ":  ")),
}


def read(lines):
    """(the chunks of a stream, what they come to)."""

    async def main():
        async def source():
            for line in lines:
                yield line

        return [chunk async for chunk in read_chunks(source())]

    chunks, whole, usage = asyncio.run(main()), Assembly(), CallUsage()
    for chunk in chunks:
        whole.add(chunk)
    completion = whole.completion(usage, 10)
    return chunks, (completion, whole.written, usage.tokens, usage.reported)


@pytest.mark.parametrize("write", WRITTEN)
@pytest.mark.parametrize("name", STREAMS)
def test_chunks_are_as_if_they_were_parsed(name, write, monkeypatch):
    lines = [f"data: {WRITTEN[write](chunk)}" for chunk in [*STREAMS[name], END]]
    chunks, whole = read(lines)
    with monkeypatch.context() as context:
        context.setattr(Patterns, "learn", lambda *_: None)
        plain, plain_whole = read(lines)
    assert [{**chunk} for chunk in chunks] == plain
    assert whole == plain_whole
    assert not any(type(chunk) is TextChunk for chunk in plain)
    assert (sum(type(chunk) is TextChunk for chunk in chunks) > len(TEXTS) // 2) == (name in MANY_TEXTS)


@pytest.mark.parametrize("cut", ["\\", "\\u12", "\\x", "\n", '"'])
def test_what_is_no_json_is_no_text(cut):
    first = json.dumps(chunk_of("Par"))
    pattern = Pattern.of(first, chunk_of("Par"))
    assert pattern.read(first.replace("Par", "is")).text == "is"
    assert pattern.read(first.replace("Par", f"is{cut}")) is None
    assert pattern.read(first[:-1]) is None
    assert pattern.read(first + " ") is None


def test_a_stream_without_a_pattern_is_not_searched_for_one_for_ever(monkeypatch):
    sought, found = [], Pattern.of
    monkeypatch.setattr(Pattern, "of", lambda *chunk: sought.append(chunk) or found(*chunk))
    read([f"data: {json.dumps(chunk_of('a', id=str(number)))}" for number in range(100)] + [f"data: {json.dumps(END)}"])
    assert len(sought) == _TRIES


@pytest.mark.parametrize("counted", [False, True])
def test_clients_get_the_same_bytes(counted, monkeypatch):
    """With `model` and, where it is asked for, `usage` from the gateway."""
    streams = {name: [*chunks, END] for name, chunks in STREAMS.items()}
    fields = {"stream": True, **({"stream_options": {"include_usage": True}} if counted else {})}

    def behave(request, headers):
        events = streams[request["messages"][0]["content"]]
        return Response([b"data: %s\n\n" % json.dumps(event).encode() for event in events] + [b"data: [DONE]\n\n"])

    def bodies():
        with gateway(behave=behave) as service:
            messages = {name: [{"role": "user", "content": name}] for name in streams}
            return {
                name: service.post({"model": "large", "messages": said, **fields}, x_rcjax_query="q1").body
                for name, said in messages.items()
            }

    passed = bodies()
    monkeypatch.setattr(Patterns, "learn", lambda *_: None)
    assert passed == bodies()
