"""A server with the API of OpenAI, whose two models do small sums: what the writers beside ask through real programs.

`toy-small` errs on every third sum and is less sure there; `toy-large` errs on one. A question about the number 13
fails; a question with a tool gets a call of it, and no text. The body of a request to `/log` is appended to a file.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

QUESTIONS = [f"What is {number} + 1? Number only." for number in range(8)]
MODELS = ("toy-small", "toy-large")


def reply_to(request: dict) -> dict:
    """A chat completion."""
    question = request["messages"][-1]["content"]
    number = int(re.search(r"(\d+) \+ 1", question)[1])
    large = "large" in request["model"]
    right = number != 3 if large else number % 3 != 0
    text = str(number + 1 if right else number)
    logprob = -0.02 * (number + 1) if large else -0.1 * (number + 1)
    message = {"role": "assistant", "content": text}
    if request.get("tools"):
        function = {"name": request["tools"][0]["function"]["name"], "arguments": "{}"}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if request.get("tools") else "stop"}
    if request.get("logprobs"):
        top = [{"token": text, "logprob": logprob, "bytes": None}, {"token": "?", "logprob": -9.0, "bytes": None}]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}], "refusal": None}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1790000000,
        "model": f"{request['model']}-2026-01-01",
        "choices": [choice],
        "usage": {"prompt_tokens": 20 + number, "completion_tokens": 2, "total_tokens": 22 + number},
    }


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/log":
            with open(self.server.log, "ab") as file:
                file.write(body.rstrip(b"\n") + b"\n")
            return self._send(200, {})
        request = json.loads(body)
        if " 13 " in request["messages"][-1]["content"]:
            return self._send(400, {"error": {"message": "the toy is broken", "type": "invalid_request_error"}})
        return self._send(200, reply_to(request))

    def _send(self, status: int, content: dict):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Keep quiet."""


def serve(log: Path | None = None) -> ThreadingHTTPServer:
    """A server on a free port, under way."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.log = log
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
