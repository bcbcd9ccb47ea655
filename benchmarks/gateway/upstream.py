"""A model that costs nothing: an ASGI application that answers every request alike, as late as the request says.

The last message of a request ends in the seconds that the answer is to take: `… 0.4731 s`. The reply is one token, with
the twenty likeliest where the request asks for log-probabilities.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

_TOP = {"B": -0.1, **{letter: -3.5 - i for i, letter in enumerate("ACDEFGHIJKLMNOPQRST")}}
_TOKEN = {
    "token": "B",
    "logprob": -0.1,
    "bytes": [66],
    "top_logprobs": [{"token": token, "logprob": logprob, "bytes": [ord(token)]} for token, logprob in _TOP.items()],
}
_SECONDS = re.compile(rb"(\d+\.\d+) s\"")
_STREAMED = re.compile(rb'"stream": ?true')
_ASKED = re.compile(rb'"logprobs": ?true')


def wording(seconds: float) -> str:
    """The text of a message whose answer takes so long."""
    return f"Which planet is the largest? Reply with the letter: A, B, C or D. Take {seconds:.4f} s"


def _whole(logprobs: bool) -> bytes:
    content = {"content": [_TOKEN], "refusal": None} if logprobs else None
    message = {"role": "assistant", "content": "B", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": content, "finish_reason": "stop"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    return json.dumps({**head, "usage": usage}).encode()


def _chunks(logprobs: bool) -> bytes:
    content = {"content": [_TOKEN], "refusal": None} if logprobs else None
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    first = {"index": 0, "delta": {"role": "assistant", "content": "B"}, "logprobs": content, "finish_reason": None}
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    events = [{"choices": [first]}, {"choices": [last]}, {"choices": [], "usage": usage}]
    return b"".join(b"data: %s\n\n" % json.dumps({**head, **event}).encode() for event in events) + b"data: [DONE]\n\n"


_BODIES = {(streamed, asked): (_chunks if streamed else _whole)(asked) for streamed in (0, 1) for asked in (0, 1)}
_KINDS = (b"application/json", b"text/event-stream")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer one request."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    told = _SECONDS.search(body)
    if told is not None and float(told[1]) > 0:
        await asyncio.sleep(float(told[1]))
    streamed = int(_STREAMED.search(body) is not None)
    answer = _BODIES[streamed, int(_ASKED.search(body) is not None)]
    headers = [(b"content-type", _KINDS[streamed]), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, lifespan="off", backlog=2048)
