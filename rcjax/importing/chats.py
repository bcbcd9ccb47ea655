"""Calls of models as APIs have them: what was asked, what was replied; and a name of the query by what was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rcjax.importing.lines import DamageError, Line, tokens_of, unread
from rcjax.logs.columns import CACHED, TOKENS
from rcjax.policy.decisions import comparable
from rcjax.serving.completions import choice_text
from rcjax.serving.usage import told_tokens
from rcjax.signals import SignalError, Token, mean_logprob
from rcjax.signals.final_answer import chosen_choice
from rcjax.signals.replies import NO_LOGPROB, TokensError, logprob_of, read_tokens
from rcjax.signals.signal import read_choice


def of_content(content: Any, text: str, choices: Sequence[str] = ()) -> Line:
    """What the tokens of a reply tell, as an API has them: of a choice its probability, of a text the mean.

    Args:
        content: as `read_tokens` takes it.
        text: the reply.
        choices: their names; none of a free text.

    >>> of_content([{"token": "Par", "logprob": -0.25}, {"token": "is", "logprob": -0.75}], "Paris")
    {'logprob': -0.5, 'signal': 'mean'}
    >>> of_content([{"token": "Paris", "logprob": 0.5}], "Paris")
    {'error': 'a log-probability is missing, NaN or above 0', 'unread': True}
    """
    try:
        tokens = read_tokens(content, text)
    except TokensError as problem:
        return unread(problem.why)
    except SignalError:
        return {}
    return of_choice(tokens, choices, chosen_choice(text, choices)) if choices else _mean(tokens)


def of_choice(tokens: Sequence[Token], choices: Sequence[str], chosen: str | None) -> Line:
    """What tokens tell of a choice: the probability of the one `chosen`, and the likeliest where that is another."""
    try:
        _, logprob, likeliest = read_choice(tokens, choices, chosen)
    except SignalError:
        return {}
    return {"logprob": logprob, "signal": "choice", "likeliest": likeliest}


def of_numbers(logprobs: Sequence[Any]) -> Line:
    """The mean of log-probabilities whose tokens are not told.

    >>> of_numbers([-0.25, -0.75]), of_numbers([]), of_numbers([-0.1, None])["unread"]
    ({'logprob': -0.5, 'signal': 'mean'}, {}, True)
    """
    numbers = [logprob_of(logprob) for logprob in logprobs]
    tokens = [Token("", number) for number in numbers if number is not None]
    if len(tokens) < len(numbers):
        return unread(NO_LOGPROB)
    return _mean(tokens) if tokens else {}


def _mean(tokens: Sequence[Token]) -> Line:
    return {"logprob": mean_logprob(tokens), "signal": "mean"}


def messages_of(asked: Any) -> list[tuple[str, str]]:
    """(role, text) of each message, whether a text, a list of messages, or a message.

    What is no text in one (an image, a call of a tool) stands there as JSON, so that queries differ.

    >>> messages_of([{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]), messages_of("Who?")
    ([('user', 'Who?')], [('user', 'Who?')])
    """
    if isinstance(asked, str):
        return [("user", asked)] if asked else []
    messages = asked if isinstance(asked, Sequence) else [asked] if isinstance(asked, Mapping) and asked else []
    pairs = [(m.get("role"), m.get("content")) if isinstance(m, Mapping) else (None, m) for m in messages]
    return [(str(role or "user"), _text_of(content)) for role, content in pairs]


def _text_of(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content if isinstance(content, Sequence) else [content]:
        typed = isinstance(part, Mapping) and part.get("type") in (None, "text", "input_text", "output_text")
        text = part.get("text") if typed else part
        texts.append(text if isinstance(text, str) else json.dumps(part, sort_keys=True, default=str))
    return "\n".join(texts)


def decoded(value: Any) -> Any:
    """A value that may stand as JSON in a text, as where a log has no other way.

    >>> decoded('[{"role": "user"}]'), decoded("[sic]")
    ([{'role': 'user'}], '[sic]')
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def query_of(messages: Sequence[tuple[str, str]]) -> str:
    """A name of a query by the messages, without their text: the same for every model that was sent them."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]


def prompt_of(messages: Sequence[tuple[str, str]]) -> str:
    """What was asked, for a person: of several messages each with its role.

    >>> prompt_of([("system", "Be brief."), ("user", "Who?")]), prompt_of([("user", "Who?")])
    ('system: Be brief.\\nuser: Who?', 'Who?')
    """
    if len(messages) == 1:
        return messages[0][1]
    return "\n".join(f"{role}: {text}" for role, text in messages)


def replies_of(body: Mapping[str, Any], line: Line) -> list[Line]:
    """The lines of a reply of OpenAI's API (chat completions, completions, responses): one, or several to a request.

    Args:
        body: the reply as JSON.
        line: what they have in common; they share its cost, as they do the tokens.
    """
    choices = body.get("choices", [])
    if "output" not in body and not (choices and isinstance(choices, list)):
        raise DamageError("a reply has neither choices nor output: it is none of OpenAI's API")
    parts = [_responded(body)] if "output" in body else [_completed(choice) for choice in choices]
    replies = [
        {"answer": text, "finish": finish} | (of_content(content, text) if content and text else {})
        for text, content, finish in parts
    ]
    tokens = used(body.get("usage") or {}, line.get("prompt"), [text for text, *_ in parts])
    return _shared([line | tokens | (reply if reply["answer"] else reply | _UNANSWERED) for reply in replies])


def used(usage: Mapping[str, Any], prompt: str | None, texts: Sequence[str | None]) -> Line:
    """The tokens that the usage of one request tells; where it tells none, as `tokens_of` has them.

    Args:
        usage: by the names of an API.
        prompt: what was asked, if that is told.
        texts: what was replied.

    >>> used({"prompt_tokens": 0, "completion_tokens": 0}, "What is it? ", ["It is B."])
    {'input_tokens': 3, 'output_tokens': 2, 'estimated': True}
    """
    tokens = told_tokens(usage)
    if tokens is None:
        return tokens_of(None, None, prompt, ["".join(filter(None, texts))])
    caches = {name: number for name, number in zip(CACHED, tokens[2:], strict=True) if number}
    return dict(zip(TOKENS, tokens, strict=False)) | caches


def taken(answer: str | None, reply: str | None) -> Line:
    """The answer that a scorer took for one, as the answer where it is the reply, or a choice that this names.

    >>> taken("B", "ANSWER: B"), taken("42", "It is 42, I think.")
    ({'answer': 'B'}, {'answer_key': '42'})
    """
    same = not reply or comparable(answer, "choice") in (None, comparable(reply, "choice"))
    return {"answer": answer} if same else {"answer_key": answer}


#: Of a reply that calls tools, or is empty: there is nothing to judge or to compare.
_UNANSWERED = {"answer": None, "error": "without a text"}


def _shared(lines: list[Line]) -> list[Line]:
    """The answers to one request, each with its share of the tokens, in whole ones, and of the cost.

    >>> [line["input_tokens"] for line in _shared([{"input_tokens": 7}, {"input_tokens": 7}])]
    [4, 3]
    """
    several = len(lines)
    for number, line in enumerate(lines if several > 1 else ()):
        for name in (*TOKENS, *CACHED):
            if line.get(name) is not None:
                line[name] = (int(line[name]) + several - 1 - number) // several
        if line.get("cost") is not None:
            line["cost"] /= several
    return lines


def _completed(choice: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """(text, tokens, finish reason) of a choice of a chat completion or a completion."""
    logprobs = choice.get("logprobs") or {}
    if "message" in choice:
        return choice_text(choice), logprobs.get("content"), choice.get("finish_reason")
    pairs = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=True)
    content = [{"token": token, "logprob": logprob} for token, logprob in pairs]
    return choice.get("text") or "", content, choice.get("finish_reason")


def _responded(body: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """The same of a response: of its messages, without reasoning and calls of tools."""
    messages = [item for item in body["output"] if item.get("type") == "message"]
    parts = [part for item in messages for part in item.get("content") or () if part.get("type") == "output_text"]
    content = [token for part in parts for token in part.get("logprobs") or ()]
    reason = (body.get("incomplete_details") or {}).get("reason")
    finish = "length" if reason == "max_output_tokens" else reason or ("stop" if parts else None)
    return "".join(part.get("text") or "" for part in parts), content, finish
