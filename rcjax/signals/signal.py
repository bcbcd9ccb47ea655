"""What to ask of an endpoint, and how to read the confidence in its reply."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rcjax.signals.chosen import chosen_choice
from rcjax.signals.measures import (
    mean_logprob,
    normalise_answer,
    read_choice,
    stated_confidence,
    verification_logprob,
    vote_share,
)
from rcjax.signals.replies import Reading, Reply, SignalError, Token

VERIFICATION = (
    "Here is a question and an answer that was proposed for it.\n\nQuestion:\n{question}\n\nProposed answer:\n{answer}"
    "\n\nIs the proposed answer correct? Reply with the single letter Y if it is, or N if it is not."
)


STATED = (
    "How likely is it that your answer is correct? Reply with a percentage from 0% to 100% and nothing else, "
    "for example: 70%"
)


class Signal(Protocol):
    """What to ask of the endpoint, and how to read the replies; any object with these is a signal."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of `chat.completions.create` for the answer, such as `logprobs`, `top_logprobs` or `n`."""
        ...

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]] | None:
        """(messages, options) of a second question to the same model, or None if the first reply is enough."""
        ...

    def read(self, reply: Reply, second: Reply | None) -> Reading:
        """The answer and its confidence; `SignalError` where the replies do not hold them."""
        ...


def last_question(messages: Sequence[Mapping[str, Any]]) -> str:
    """The last question of the user, as text."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, Sequence) else ()
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
    return ""


def _tokens_of(reply: Reply | None) -> tuple[Token, ...] | None:
    """The tokens of a reply. Raises SignalError where those that the endpoint told cannot be used."""
    if reply is not None and reply.without_tokens is not None:
        raise SignalError(reply.without_tokens)
    return None if reply is None else reply.tokens


class OneReply:
    """A signal that the first reply is enough for."""

    __slots__ = ()

    def follow_up(self, messages: Sequence[Mapping[str, Any]], reply: Reply) -> None:
        """Nothing more to ask."""
        return None


@dataclass(frozen=True, slots=True)
class Choice(OneReply):
    """Multiple choice: the probability of the choice made, as `choice_logprob` has it; for `task="choice"`.

    `choices` are their names, each a single token; `top` is how many of the likeliest tokens to ask for (OpenAI and
    vLLM give up to 20, some endpoints fewer). A reply that names no choice gives no answer, which is never right and
    equal to nothing; its confidence is that of the likeliest choice.
    """

    choices: tuple[str, ...] = ("A", "B", "C", "D")
    top: int = 20

    @property
    def options(self) -> Mapping[str, Any]:
        """Log-probabilities of the `top` likeliest tokens."""
        return {"logprobs": True, "top_logprobs": self.top}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """The choice made, its log-probability, and the likeliest one where that is another."""
        made = chosen_choice(reply.text, self.choices)
        _, logprob, likeliest = read_choice(_tokens_of(reply), self.choices, made)
        return Reading(made or "", logprob, likeliest=likeliest)


@dataclass(frozen=True, slots=True)
class Verification:
    """Free text: the model is shown its answer and asked whether it is right; its probability of yes.

    `template` is the second question; `{question}` (the user's last message) and `{answer}` are filled in.
    `options` are those of the second question.
    """

    template: str = VERIFICATION
    top: int = 20
    yes: tuple[str, ...] = ("Y", "Yes")
    no: tuple[str, ...] = ("N", "No")
    second_options: Mapping[str, Any] = field(default_factory=lambda: {"max_tokens": 1, "temperature": 0.0})

    @property
    def options(self) -> Mapping[str, Any]:
        """Nothing special of the answer itself."""
        return {}

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """The second question, by itself: without the conversation, and so cheap."""
        # One pass, so that braces in a question or an answer stay what they are.
        fillings = {"{question}": last_question(messages), "{answer}": reply.text}
        question = re.sub(r"\{question\}|\{answer\}", lambda match: fillings[match[0]], self.template)
        options = {**self.second_options, "logprobs": True, "top_logprobs": self.top}
        return [{"role": "user", "content": question}], options

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """The answer, and the log-probability of yes."""
        return Reading(reply.text, verification_logprob(_tokens_of(second), self.yes, self.no))


@dataclass(frozen=True, slots=True)
class Votes(OneReply):
    """Any endpoint with `n`: the share of several samples that give the most frequent answer.

    `normalise` brings an answer to the form in which answers are compared, such as by taking the number out of it. A
    `temperature` of None leaves that to the options. With `apart`, a cascade takes each sample by a request of its own,
    at any endpoint.
    """

    samples: int = 5
    temperature: float | None = 0.7
    normalise: Callable[[str], str] = normalise_answer
    apart: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """So many samples at this temperature."""
        number = {} if self.apart else {"n": self.samples}
        return number if self.temperature is None else {**number, "temperature": self.temperature}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """The answer that most samples give, the log of their share, and the first of them as it is.

        The answer is as it is compared, or as `normalise.answer` has it, where `normalise` is an object with that.
        """
        if len(reply.texts) < self.samples:
            counted = f"{len(reply.texts)} of {self.samples} samples"
            why = "the others failed" if self.apart else "the endpoint ignores n; use rcjax.signals.Stated"
            raise SignalError(f"the reply has {counted}: {why}")
        answer, share = vote_share(reply.texts, self.normalise)
        read = getattr(self.normalise, "answer", self.normalise)
        return Reading(read(answer), math.log(share), answer)


@dataclass(frozen=True, slots=True)
class Stated:
    """Any endpoint: the probability that the model states, in its reply or, with a `question`, in a second one."""

    question: str | None = STATED
    second_options: Mapping[str, Any] = field(default_factory=lambda: {"max_tokens": 10, "temperature": 0.0})

    @property
    def options(self) -> Mapping[str, Any]:
        """Nothing special."""
        return {}

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]] | None:
        """The conversation with the answer, and the question for a percentage."""
        if self.question is None:
            return None
        after = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": self.question}]
        return [*messages, *after], self.second_options

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """The answer, and the log of the probability stated."""
        stated = stated_confidence((second or reply).text)
        return Reading(reply.text, math.log(stated) if stated > 0 else -math.inf)


@dataclass(frozen=True, slots=True)
class MeanLogprob(OneReply):
    """Short free text: the mean log-probability of the tokens of the answer."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The log-probability of each token."""
        return {"logprobs": True}

    def read(self, reply: Reply, second: Reply | None = None) -> Reading:
        """The answer, and the mean log-probability of its tokens."""
        return Reading(reply.text, mean_logprob(_tokens_of(reply)))
