"""Asks a gateway by LiteLLM: a programme for the environment that has it, which prints what came back as JSON.

python ask_by_litellm.py URL KEY PROVIDER
"""

import asyncio
import json
import sys

QUESTION = [{"role": "user", "content": "A or B?"}]
AT = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": AT}}]


def told(answer):
    choice = answer.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return {
        "text": choice.message.content,
        "finish_reason": choice.finish_reason,
        "calls": calls,
        "total": answer.usage.total_tokens,
        "logprobs": bool(getattr(choice, "logprobs", None)),
        "reasoning": getattr(choice.message, "reasoning_content", None),
        "headers": {name: value for name, value in headers_of(answer).items() if "rcjax" in name},
    }


def headers_of(answer):
    return (getattr(answer, "_hidden_params", None) or {}).get("additional_headers") or {}


def main(url, key, provider):
    import litellm

    options = {"model": f"{provider}/policy", "api_base": url, "api_key": key, "messages": QUESTION}
    options |= {"max_retries": 0, "num_retries": 0}

    def streamed(**fields):
        chunks = [*litellm.completion(**options, stream=True, stream_options={"include_usage": True}, **fields)]
        return litellm.stream_chunk_builder(chunks, messages=QUESTION)

    async def asynchronous():
        answer = await litellm.acompletion(**options)
        chunks = [chunk async for chunk in await litellm.acompletion(**options, stream=True)]
        return told(answer), "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def failure(**fields):
        try:
            litellm.completion(**{**options, **fields})
        except Exception as problem:
            return type(problem).__name__, getattr(problem, "status_code", None)

    whole, pieces = asyncio.run(asynchronous())
    replies = {
        "plain": told(litellm.completion(**options)),
        "streamed": told(streamed()),
        "async": whole,
        "async streamed": pieces,
        "tools": told(litellm.completion(**options, tools=TOOLS)),
        "tools streamed": told(streamed(tools=TOOLS)),
        "logprobs": told(litellm.completion(**options, logprobs=True, top_logprobs=2)),
        "json": told(litellm.completion(**options, response_format={"type": "json_object"})),
        "no such model": failure(model=f"{provider}/larger"),
        "refused": failure(messages=[{"role": "user", "content": "too long"}]),
        "too many": failure(messages=[{"role": "user", "content": "too many"}]),
    }
    print(json.dumps(replies))


if __name__ == "__main__":
    main(*sys.argv[1:])
