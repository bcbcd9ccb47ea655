"""How a response reaches its client: whole, or as events while it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import Send

from rcjax.serving.gateway.api_errors import ApiError
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.responder import STREAM, Responder, encoded
from rcjax.serving.gateway.response_assembly import Event, ResponseAssembly
from rcjax.serving.gateway.responses import read_response_request
from rcjax.serving.gateway.sent_completions import chunks_of


class ResponsesResponder(Responder):
    """The answer to one request, in the words of responses."""

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self._assembly = ResponseAssembly({})
        self._events = 0  # that were sent

    def read(self, body: bytes) -> ChatRequest:
        """The request in a body, as one for a completion. Raises ApiError for what cannot be one."""
        request, asked = read_response_request(body)
        self._assembly = ResponseAssembly(asked)
        return request

    async def document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Send a completion as a response, or an error as it is."""
        if status == 200:
            first = [{**choice, "index": 0} for choice in document["choices"][:1]]
            for chunk in chunks_of({**document, "choices": first}, counted=True):
                for _ in self._assembly.add(chunk):
                    pass
            document = self._assembly.to_json(self._assembly.ending)
        await super().document(document, headers, status)

    async def event(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send the events of a chunk; the headers with the first."""
        await self._send_events(self._assembly.add(document), headers)

    async def done(self) -> None:
        """End a stream by the response as a whole."""
        if not self.complete:
            await self._send_events(self._assembly.end())

    async def error(self, problem: ApiError, headers: Mapping[str, str] | None = None) -> None:
        """Send an error in place of an answer, or end a stream by one."""
        if not self.begun or self.complete:
            await super().error(problem, headers)
            return
        error, *rest = self._assembly.fail(problem)
        try:
            await self._send_events([error, *rest])
        except ApiError:  # what came of the answer cannot be sent
            await self._send_events([error])

    async def _send_events(self, events: Iterable[Event], headers: Mapping[str, str] | None = None) -> None:
        """Send events, with the headers if they are the first; without headers they are the last."""
        parts = []
        for number, event in enumerate(events, self._events):
            data = encoded({**event, "sequence_number": number})
            parts.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
        self._events += len(parts)
        if headers is not None and not self.begun:
            await self._start(200, {**STREAM, **headers})
        if parts or headers is None:
            await self._body(b"".join(parts), more=headers is not None)
