"""How an answer reaches its client: whole, as events at once, or piece by piece while it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.sent_completions import Account, Wording, chunks_of, stream_head, whole_completion
from rcjax.serving.streams import Piece


@dataclass(slots=True)
class Sending:
    """Sends one answer, as its client asked for it."""

    wording: Wording
    responder: Responder
    account: Account
    """What is known of what the gateway did; more of it while the answer comes."""
    _head: Mapping[str, Any] = field(default_factory=dict)
    _problem: Exception | None = None

    @property
    def _counted(self) -> bool:
        return self.wording.request.counted

    async def piece(self, piece: Piece) -> None:
        """Send a piece of an answer while it comes; what goes wrong is raised by `rest`."""
        try:
            await self._piece(piece)
        except Exception as problem:
            self._problem = problem
            raise

    async def _piece(self, piece: Piece) -> None:
        if piece.chunk is None:
            if not self._counted:  # a second question of the signal keeps nobody waiting
                await self.responder.done()
            return
        if not self.responder.begun:
            self.account = replace(self.account, model=piece.model, calls=piece.calls)
            self._head = stream_head(self.account, piece.chunk, counted=self._counted)
        fields = {name: value for name, value in piece.chunk.items() if name != "usage"}  # of one attempt only
        choices = [self.wording.choice(choice) for choice in piece.chunk["choices"]]
        chunk = {**fields, **self._head, "choices": choices}
        if any(choice.get("finish_reason") for choice in choices) and not self._counted:
            chunk["rcjax"] = self.account.to_json() | {"cost": None}  # which is not known yet
        await self.responder.event(chunk, self.account.headers(ended=False))

    async def rest(
        self, completion: Mapping[str, Any] | None, text: str | None, usage: Mapping[str, Any] | None, *, judged: bool
    ) -> None:
        """Send an answer that is there to its end, or what is not sent of it yet.

        Args:
            completion: as the endpoint sent it; None for a refusal.
            text: of the choice that was kept, where it is judged.
            usage: tokens of all attempts.
            judged: one choice of it is the answer; else all are.
        """
        if self._problem is not None:
            raise self._problem
        if self.responder.begun:
            if self._counted:
                last = {**self._head, "choices": [], "usage": usage, "rcjax": self.account.to_json()}
                await self.responder.event(last, {})
            await self.responder.done()
            return
        choices = self.wording.choices(completion, text, judged=judged)
        whole, headers = whole_completion(self.account, completion, choices, usage), self.account.headers()
        if not self.wording.request.stream:
            await self.responder.document(whole, headers)
            return
        for chunk in chunks_of(whole, counted=self._counted):
            await self.responder.event(chunk, headers)
        await self.responder.done()
