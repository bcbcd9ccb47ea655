"""A million inputs for each of the two parsers of `rcjax serve`, guided by the code that they reach.

    pip install atheris && python -m benchmarks.fuzz [--runs 1000000] [--only request]

One parser turns the bytes of a request, for a completion or a response, into the options of a call. The other turns the
reply of an upstream, whole or as events, into the JSON for a client. Each must succeed, or raise an error that the
gateway expects: any other exception is a fault, which a client would see as status 500. Atheris mutates a few good
inputs, and keeps the inputs that reach new code; without Atheris, mutations are drawn at random. Prints a Markdown
table; the exit status is 1 if there is a fault.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

from benchmarks import record
from benchmarks.gateway.quirks import QUIRKS, stream_of
from rcjax.policy.signals import Choice, MeanLogprob, SignalError, Stated
from rcjax.serving.call_log import Query, Result
from rcjax.serving.completions import Assembly, read_chunks, read_completion, read_reply
from rcjax.serving.failures import CallError
from rcjax.serving.gateway.chat import client_choice, client_choices, encode_json, make_completion, split_into_chunks
from rcjax.serving.gateway.chat_request import ChatRequest, parse_chat_request, read_object
from rcjax.serving.gateway.clients import ApiError
from rcjax.serving.gateway.responses import ResponseAssembly, read_response_request
from rcjax.serving.models_file import split_options
from rcjax.serving.usage import CallUsage, sum_usages, text_bytes

_MESSAGES = [{"role": "user", "content": "Which planet is the largest? A Mars, B Jupiter"}]
_TOP = [{"token": text, "logprob": logprob, "bytes": [65]} for text, logprob in (("A", -0.1), ("B", -2.5))]
_TOKEN = {"token": "A", "logprob": -0.1, "bytes": [65], "top_logprobs": _TOP}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "A", "refusal": None}, "finish_reason": "stop"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 3}}
_WHOLE = {"id": "c", "created": 1, "choices": [{**_CHOICE, "logprobs": {"content": [_TOKEN]}}], "usage": _USAGE}
_DELTA = {"index": 0, "delta": {"role": "assistant", "content": "A"}, "logprobs": {"content": [_TOKEN]}}
_EVENTS = [{"choices": [_DELTA]}, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"usage": _USAGE}]
_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_PIECES = [{**_CALL, "index": 0}, {**_CALL, "index": None, "id": "2"}, {"function": {"arguments": "}"}}]
_CALLS = stream_of([{"choices": [{"index": None, "delta": {"tool_calls": [one]}}]} for one in _PIECES])
_INPUT = [{"type": "output_text", "text": "A"}, {"type": "input_text", "text": "é"}]


def _json(*documents: Any) -> list[bytes]:
    return [json.dumps(document).encode() for document in documents]


#: Good inputs, by target.
CORPUS = {
    "request": _json(
        {"model": "policy", "messages": _MESSAGES, "temperature": 0, "stop": ["\n"], "logit_bias": {"1": 2}},
        {"model": "large", "messages": _MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
        {"model": "m", "messages": [{"role": "tool", "content": [{"type": "text", "text": "é\ud83d\ude00"}]}], "n": 2},
        {"model": "m", "messages": _MESSAGES, "logprobs": True, "top_logprobs": 5, "tools": [_CALL], "documents": [{}]},
        {"model": "m", "messages": _MESSAGES, "response_format": {"type": "text"}, "reasoning": {"effort": "low"}},
    ),
    "response": _json(
        {"model": "policy", "input": "A or B?", "instructions": "é", "temperature": 0, "max_output_tokens": 9},
        {"model": "large", "input": [*_MESSAGES, {"type": "function_call", **_CALL["function"], "call_id": "1"}]},
        {"model": "m", "input": [{"type": "function_call_output", "call_id": "1", "output": _INPUT}], "stream": True},
        {"model": "m", "input": [{"role": "assistant", "content": _INPUT}], "text": {"format": {"type": "text"}}},
        {"model": "m", "input": _MESSAGES, "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
        {"model": "m", "input": _MESSAGES, "top_logprobs": 5, "include": ["x"], "reasoning": {"effort": "low"}},
    ),
    "reply": _json(
        *(quirk.whole for quirk in QUIRKS.values() if isinstance(quirk.whole, dict)),
        _WHOLE,
        {**_WHOLE, "choices": [{**_CHOICE, "message": {"content": "Sure. Confidence: 80%"}}, _CHOICE], "usage": None},
        {**_WHOLE, "choices": [{**_CHOICE, "message": {"content": None, "tool_calls": [_CALL]}}]},
        {"error": {"message": "no", "code": "insufficient_quota", "type": "x"}},
        {"choices": [{"message": {"content": [{"type": "text", "text": "A"}], "reasoning_content": "…"}}]},
        {**_WHOLE, "choices": [{**_CHOICE, "logprobs": {"content": [{"token": "A", "logprob": float("-inf")}]}}]},
    ),
    "events": [
        _CALLS,
        *(stream_of(quirk.events) for quirk in QUIRKS.values() if quirk.events is not None),
        b"".join(b"data: " + event + b"\n\n" for event in _json(*_EVENTS)) + b"data: [DONE]\n\n",
        b': wait\n\ndata: {\ndata: "choices": []}\n\nevent: x\nid: 1\ndata: [DONE]\n\n',
        b'data: {"error": {"code": "overloaded"}}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "length"}], "x": 1}\r\n\r\n',
    ],
}


def _expect(condition: bool) -> None:
    if not condition:
        raise AssertionError("not as it is expected")


def request(body: bytes) -> None:
    """Read a request, and make of it what models are asked, what is logged, and what a client is told."""
    _ask(body, lambda text: parse_chat_request(read_object(text)))


def response(body: bytes) -> None:
    """The same of a request for a response."""
    _ask(body, _read_response_request)


def _read_response_request(body: bytes) -> ChatRequest:
    read, repeated = read_response_request(body)
    _strict(encode_json(repeated))
    return read


def _ask(body: bytes, reader: Callable[[bytes], ChatRequest]) -> None:
    try:
        read = reader(body)
    except ApiError as problem:
        _expect(400 <= problem.status < 500)
        return
    for judged in (False, True):
        options = read.options(judged=judged)
        json.dumps({"messages": read.messages, **options}, allow_nan=False).encode()
        json.dumps(split_options(options), allow_nan=False)
    text_bytes(read.messages)
    client_choices(read, "no", _result(_WHOLE, "A"), judged=True)


_SIGNALS = (Choice(("A", "B")), Stated(), MeanLogprob())
_ASKED = [
    parse_chat_request({"model": "m", "messages": [{"role": "user"}], **more})
    for more in ({}, {"logprobs": True, "top_logprobs": 2})
]


def reply(content: bytes) -> None:
    """Read a reply, and make of it what a client gets."""
    usage = CallUsage()
    try:
        completion = read_completion(content, usage)
    except CallError as problem:
        _expect(str(problem).isprintable())
        return
    _sent(completion, usage)


def events(content: bytes) -> None:
    """Read the events of a stream, and make of them what a client gets."""
    lines = content.decode("utf-8", "replace").split("\n")

    async def source() -> AsyncIterator[str]:
        for line in lines:
            yield line.rstrip("\r")

    async def read() -> None:
        usage, whole = CallUsage(), Assembly()
        try:
            async for chunk in read_chunks(source()):
                numbered = whole.add(chunk)
                for asked in _ASKED:
                    choices = [client_choice(asked, choice) for choice in numbered["choices"]]
                    _strict(encode_json({**numbered, "choices": choices}))
        except CallError as problem:
            _expect(str(problem).isprintable())
            return
        _sent(whole.completion(usage), usage)

    _loop().run_until_complete(read())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _sent(completion: Any, usage: CallUsage) -> None:
    """Read the confidence of a completion by each signal, and write it as it goes to clients."""
    text = None
    try:
        said = read_reply(completion)
        text = said.text
        for signal in _SIGNALS:
            with suppress(SignalError):
                signal.read(said, None)
    except CallError:
        text = None
    if not all(isinstance(choice, dict) for choice in completion["choices"]):
        return
    for asked in _ASKED:
        for judged in (False, True):
            result = _result(completion, text, sum_usages([usage]))
            choices = client_choices(asked, "no", result, judged=judged)
            whole = make_completion({"query": "q", "model": "large"}, result, choices)
            try:
                _strict(encode_json(whole))
                translated = ResponseAssembly({})
                for chunk in split_into_chunks(whole, includes_usage=True):
                    for document in (chunk, *translated.add(chunk)):
                        _strict(encode_json(document))
                for event in translated.end():
                    _strict(encode_json(event))
            except ApiError as problem:
                _expect(problem.status == 502)


def _result(completion: Any, text: str | None, usage: Any = None) -> Result:
    return Result(Query("q", ()), "answered", text, text, "large", None, 0.0, (), completion, usage)


def _strict(text: bytes) -> None:
    assert b"\n" not in text
    if _CONSTANTS.search(text):  # perhaps within a text
        json.loads(text, parse_constant=lambda constant: 1 / 0)


_CONSTANTS = re.compile(rb"NaN|Infinity")


#: What is fuzzed, by name.
TARGETS: dict[str, Callable[[bytes], None]] = {
    "request": request,
    "response": response,
    "reply": reply,
    "events": events,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one target."""

    inputs: int
    seconds: float
    reached: int | None
    """Branches and comparisons that some input reached; None without Atheris."""
    kept: int | None
    """Inputs that were kept, as they reach code that no other does."""
    fault: str | None


def by_atheris(name: str, runs: int, seed: int) -> Outcome:
    """Fuzz a target in a process of its own, as Atheris ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(CORPUS[name]):
            (Path(folder) / str(number)).write_bytes(text)
        words = [sys.executable, "-m", "benchmarks.fuzz", "--child", name, folder]
        words += [f"-runs={runs}", f"-seed={seed}", "-max_len=4096", "-timeout=20", f"-artifact_prefix={folder}/fault-"]
        start = time.monotonic()
        told = subprocess.run(words, capture_output=True, text=True, errors="replace", cwd=Path(__file__).parents[1])
        seconds = time.monotonic() - start
    done = re.search(r"^Done (\d+) runs", told.stderr, re.MULTILINE)
    last = [*re.finditer(r"^#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)", told.stderr, re.MULTILINE)]
    inputs = int(done[1]) if done else int(last[-1][1]) if last else 0
    fault = None if told.returncode == 0 and done else told.stderr[-2000:]
    return Outcome(inputs, seconds, int(last[-1][2]) if last else None, int(last[-1][4]) if last else None, fault)


def by_chance(name: str, runs: int, seed: int) -> Outcome:
    """Fuzz a target with mutations of its good inputs."""
    lots, start = random.Random(seed), time.monotonic()
    for number in range(runs):
        text = mutated(lots, CORPUS[name])
        try:
            TARGETS[name](text)
        except Exception as problem:
            return Outcome(number + 1, time.monotonic() - start, None, None, f"{text!r}: {problem!r}")
    return Outcome(runs, time.monotonic() - start, None, None, None)


_ODD = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b'"',
    b"\\",
    b"\\ud800",
    b"[" * 99,
    b"9" * 5000,
    b"\xff",
]


def mutated(lots: random.Random, corpus: list[bytes]) -> bytes:
    """One of some texts, changed in a few places: bytes, odd values, parts of another one, parts left out."""
    text = bytearray(lots.choice(corpus))
    for _ in range(lots.randint(1, 4)):
        at = lots.randrange(len(text) + 1)
        kind = lots.randrange(5)
        if kind == 0:
            text[at : at + 1] = bytes([lots.randrange(256)])
        elif kind == 1:
            text[at : at + lots.randrange(8)] = lots.choice(_ODD)
        elif kind == 2:
            other = lots.choice(corpus)
            begin = lots.randrange(len(other) + 1)
            text[at:at] = other[begin : begin + lots.randrange(60)]
        elif kind == 3:
            del text[at : at + lots.randrange(30)]
        else:  # a value for another, as a whole
            ends = [match.span(1) for match in re.finditer(rb"[:,\[]\s*([^\s,:\[\]{}]+)(?=[,\]}])", text)]
            begin, end = lots.choice(ends) if ends else (at, at)
            text[begin:end] = lots.choice(_ODD)
    return bytes(text)


def child(name: str, words: list[str]) -> None:
    """Fuzz a target by Atheris, and end the process."""
    import atheris

    for module in [module for name, module in sys.modules.items() if name.startswith(("rcjax.s", "__main__"))]:
        for part in vars(module).values():
            if isinstance(part, FunctionType) and part.__module__.startswith(("rcjax.s", "__main__")):
                atheris.instrument_func(part)
    atheris.Setup([sys.argv[0], *words], TARGETS[name])
    atheris.Fuzz()


def main() -> None:
    """Fuzz each target, and print the table."""
    options = record.parser(__doc__)
    options.add_argument("--runs", type=int, default=10**6, help="inputs of each")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", choices=[*TARGETS], help="one of them")
    chosen = options.parse_args()
    led = find_spec("atheris") is not None
    fuzz = by_atheris if led else by_chance
    outcomes = {name: fuzz(name, chosen.runs, chosen.seed) for name in TARGETS if chosen.only in (None, name)}
    print("| parser of | inputs | seconds | reached | kept | faults |\n|---|--:|--:|--:|--:|--:|")
    for name, one in outcomes.items():
        cells = [f"{one.inputs:,}", f"{one.seconds:.0f}", one.reached, one.kept, int(one.fault is not None)]
        print(f"| {name} |" + "".join(f" {'–' if cell is None else cell} |" for cell in cells))
    print(f"\nMutations {'by Atheris, led by coverage' if led else 'drawn: atheris is not installed'}.")
    faults = [one.fault for one in outcomes.values() if one.fault is not None]
    total = sum(one.inputs for one in outcomes.values())
    record.headline(
        "`rcjax serve`: inputs fuzzed to the parsers of requests and replies; faults", f"{total:,}; {len(faults)}"
    )
    for fault in faults:
        print(f"\n```\n{fault}\n```")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    record.run(main)
