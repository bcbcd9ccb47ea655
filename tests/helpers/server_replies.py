"""Replies of each family of servers to a question of multiple choice, by their documentation, and their contents.

Written for the tests, none of it copied. Each family has its own way to tell more tokens than the answer has, or to
tell them twice: hidden reasoning, the marker of the end, two tokens of one text, an alternative without a number.
"""

import math
from dataclasses import dataclass, field

QUESTION = "Which is the largest? A: the Sun. B: the Moon. Reply with the letter alone."


@dataclass(frozen=True)
class Expected:
    """The contents that every reader must find in a reply."""

    body: dict
    answer: str
    logprob: float
    mean: float
    hidden: int = 0
    """Tokens before those of the text, which a stream tells as reasoning."""
    after: int = field(default=0)
    """Tokens after those of the text."""

    def events(self):
        """The reply as a stream, each token with its log-probabilities, as these servers send it."""
        head = {name: value for name, value in self.body.items() if name not in ("choices", "usage")}
        head["object"] = "chat.completion.chunk"
        choice = self.body["choices"][0]
        tokens = choice["logprobs"]["content"]
        said = len(tokens) - self.after
        deltas: list = [({"role": "assistant", "content": ""}, None)]
        for place, token in enumerate(tokens):
            name = "reasoning_content" if place < self.hidden else "content"
            deltas.append(({name: token["token"]} if place < said else {"content": ""}, {"content": [token]}))
        events = [
            {**head, "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}]}
            for delta, logprobs in deltas
        ]
        end = {**head, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]}
        return [*events, end, {**head, "choices": [], "usage": self.body["usage"]}, b"data: [DONE]\n\n"]


def total(*logprobs):
    """The log of the sum of some probabilities."""
    return math.log(sum(map(math.exp, logprobs)))


def token(text, logprob, *top, told=True, **more):
    """A token with its likeliest alternatives, (text, logprob) each, and its bytes where they are `told`."""
    entries = [one(text, logprob, told) for text, logprob in top]
    return {**one(text, logprob, told), "top_logprobs": entries, **more}


def one(text, logprob, told=True):
    return {"token": text, "logprob": logprob, "bytes": [*text.encode()] if told else None}


def without_bytes(entry):
    """Return the tokens of a server that gives no bytes."""
    rest = {name: value for name, value in entry.items() if name not in ("bytes", "top_logprobs")}
    return rest | {"top_logprobs": [*map(without_bytes, entry["top_logprobs"])]} if "top_logprobs" in entry else rest


def reply(model, message, content, **fields):
    """The body of a completion; its choice has these fields, too."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "logprobs": {"content": content}}
    body = {"id": "chatcmpl-7f3a", "object": "chat.completion", "created": 1764000000, "model": model}
    usage = {"prompt_tokens": 31, "completion_tokens": len(content), "total_tokens": 31 + len(content)}
    return body | {"choices": [{**choice, "finish_reason": "stop", **fields}], "usage": usage}


def openai():
    """Spellings of one letter are tokens of their own."""
    content = [token("A", -0.105, ("A", -0.105), ("B", -2.75), (" A", -4.25), ("The", -9.5))]
    body = reply("gpt-4.1-mini-2025-04-14", {"content": "A", "refusal": None, "annotations": []}, content)
    body["choices"][0]["logprobs"]["refusal"] = None
    return Expected(body, "A", total(-0.105, -4.25), -0.105)


def azure():
    """Filters beside the answer; at a temperature of 1 another one is likelier."""
    content, sound = [token("B", -1.2, ("A", -0.4), ("B", -1.2), ("C", -6.0))], {"hate": {"filtered": False}}
    body = reply("gpt-4o-2024-11-20", {"content": "B", "refusal": None}, content, content_filter_results=sound)
    return Expected(body, "B", -1.2, -1.2)


def vllm():
    """Reasoning and the marker of the end are among the tokens; ▁A and A have one text, -9999 is an impossible one."""
    thought = [token(text, logprob) for text, logprob in (("B", -0.4), (" may be a trap", -1.6), ("</think>", -0.02))]
    answer = [
        token("\n\n", -0.01, ("\n\n", -0.01), ("\n", -4.6)),
        token("A", -0.1, ("A", -0.1), ("B", -3.0), ("A", -4.0), ("C", -9999.0)),
    ]
    message = {"content": "\n\nA", "reasoning_content": "B may be a trap", "refusal": None, "tool_calls": []}
    end = token("<|im_end|>", -0.001, ("<|im_end|>", -0.001))
    body = reply("Qwen/Qwen3-8B", message, [*thought, *answer, end], stop_reason=None)
    return Expected(body, "A", -0.01 + total(-0.1, -4.0), (-0.01 - 0.1) / 2, hidden=3, after=1)


def sglang():
    """All that was generated is told, the text trimmed; of two tokens of one text only the less likely is listed."""
    thought = [token(text, -0.7) for text in ("<think>", "A or B", "?", " A", "</think>", "\n\n")]
    content = [*thought, token("A", -0.1, ("B", -3.0), ("A", -4.0)), token("<|im_end|>", -0.002)]
    message = {"content": "A", "reasoning_content": "A or B? A", "tool_calls": None}
    body = reply("qwen3-8b", message, content, matched_stop=151645)
    return Expected(body, "A", total(-0.1, -4.0), -0.1, hidden=6, after=1)


def llama_cpp():
    """Numbers of tokens; what has no probability at all is null, or the least float32."""
    top = [{"id": 32, **one("A", -0.2)}, {"id": 33, **one("B", -1.9)}, {"id": 34, **one("C", None)}]
    content = [{"id": 32, **one("A", -0.2), "top_logprobs": [*top, {"id": 362, **one(" A", -3.4028234663852886e38)}]}]
    return Expected(reply("gemma-3-4b-it-Q4_K_M.gguf", {"content": "A"}, content), "A", -0.2, -0.2)


def tgi():
    """No bytes; the marker of the end is a token; float32 rounds a log-probability to above 0."""
    letter, end = token("A", 2.4e-7, ("A", 2.4e-7), ("B", -15.5)), token("<|eot_id|>", -0.03, ("<|eot_id|>", -0.03))
    body = reply("meta-llama/Llama-3.1-8B-Instruct", {"content": "A"}, [*map(without_bytes, (letter, end))])
    return Expected(body, "A", 0.0, 0.0, after=1)


def ollama():
    """Reasoning has a field of its own, and its tokens are told."""
    thought = [token(text, -0.3, (text, -0.3)) for text in ("Moon", " is", " B", ".")]
    content = [*thought, token("A", -0.25, ("A", -0.25), ("B", -1.75), ("a", -5.0))]
    body = reply("qwen3:4b", {"content": "A", "reasoning": "Moon is B."}, content)
    return Expected(body, "A", total(-0.25, -5.0), -0.25, hidden=4)


def litellm():
    """A proxy: null where the provider told nothing, content in what was asked for."""
    content = [{"token": "A", "bytes": None, "logprob": -0.3, "top_logprobs": None}]
    message = {"content": "A", "tool_calls": None, "function_call": None}
    return Expected(reply("together_ai/some-model", message, content), "A", -0.3, -0.3)


#: What is expected of each family.
FAMILIES = {
    "OpenAI": openai(),
    "Azure": azure(),
    "vLLM": vllm(),
    "SGLang": sglang(),
    "llama.cpp": llama_cpp(),
    "TGI": tgi(),
    "Ollama": ollama(),
    "LiteLLM": litellm(),
}
