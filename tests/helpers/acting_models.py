"""An upstream whose models do what a request asks for: tools, forms, several answers, log-probabilities."""

import json

from helpers.chat_server import KEY, Response, completion, sure
from helpers.gateway_service import SURE, UNSURE

FORM = {"letter": "B", "why": "“é”"}  # what is said where JSON is asked for


class ActingModels:
    """They say B and are sure of it; those in `unsure` say A and are not.

    "too long" is refused for its length, and "too many" is one request too many, whoever is asked.
    """

    def __init__(self):
        self.unsure = ()

    def __call__(self, request, headers):
        assert headers["authorization"].lower() == f"bearer {KEY}"
        model, last = request["model"].removeprefix("org/"), request["messages"][-1]
        if last["content"] == "too long":
            return Response({"error": {"message": "", "code": "context_length_exceeded"}}, 400)
        if last["content"] == "too many":
            return Response({"error": {"message": ""}}, 429, {"retry-after": "7"})
        if request.get("tools") and last["role"] != "tool":
            calls = [call_of(tool["function"]) for tool in request["tools"]]
            return Response(said(model, content=None, finish_reason="tool_calls", tool_calls=calls))
        if request.get("response_format", {}).get("type") in ("json_object", "json_schema"):
            return Response(said(model, content=json.dumps(FORM)))
        return Response(self._letter(model, request))

    def _letter(self, model, request):
        body = sure("A", UNSURE) if model in self.unsure else sure("B", SURE)
        choices = [{**body["choices"][0], "index": i} for i in range(request.get("n") or 1)]
        if not request.get("logprobs"):
            choices = [{**choice, "logprobs": None} for choice in choices]
        return body | {"choices": choices, "model": request["model"]}


def call_of(function):
    """A call of a tool, with a text for each parameter."""
    arguments = dict.fromkeys(function["parameters"]["properties"], f"é {function['name']}")
    name = function["name"]
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def said(model, finish_reason="stop", **message):
    """The completion of a message."""
    body = completion("") | {"model": f"org/{model}"}
    body["choices"][0] |= {"message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return body
