"""Asks a gateway by LangChain: a programme for the environment that has it, which prints what came back as JSON.

python ask_by_langchain.py URL KEY
"""

import asyncio
import json
import sys


def told(message):
    return {
        "text": message.content,
        "calls": [(call["name"], call["args"]) for call in message.tool_calls],
        "usage": (message.usage_metadata or {}).get("total_tokens"),
        "model": message.response_metadata.get("model_name"),
        "finish_reason": message.response_metadata.get("finish_reason"),
        "logprobs": bool(message.response_metadata.get("logprobs")),
    }


def main(url, key):
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Letter(BaseModel):
        """An answer."""

        letter: str
        why: str

    @tool
    def look(at: str) -> str:
        """Looks."""
        return at

    def chat(**fields):
        return ChatOpenAI(model="policy", base_url=url, api_key=key, max_retries=0, **fields)

    def streamed(chat):
        pieces = [*chat.stream("A or B?")]
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        return told(whole)

    async def asynchronous():
        pieces = [piece async for piece in chat().astream("A or B?")]
        return told(await chat().ainvoke("A or B?")), "".join(piece.content for piece in pieces)

    def failure(question, **fields):
        try:
            chat(**fields).invoke(question)
        except Exception as problem:
            return [kind.__name__ for kind in type(problem).__mro__]

    whole, pieces = asyncio.run(asynchronous())
    replies = {
        "plain": told(chat().invoke("A or B?")),
        "streamed": streamed(chat(stream_usage=True)),
        "async": whole,
        "async streamed": pieces,
        "batch": [told(one) for one in chat().batch(["A or B?"] * 5)],
        "tools": told(chat().bind_tools([look]).invoke("A or B?")),
        "tools streamed": streamed(chat().bind_tools([look])),
        "form": chat().with_structured_output(Letter).invoke("A or B?").model_dump(),
        "form by tool": chat().with_structured_output(Letter, method="function_calling").invoke("A or B?").model_dump(),
        "logprobs": told(chat(logprobs=True, top_logprobs=2).invoke("A or B?")),
        "several": [one.message.content for one in chat(n=2).generate([[HumanMessage("A or B?")]]).generations[0]],
        "refused": failure("too long"),
        "too many": failure("too many"),
    }
    print(json.dumps(replies))


if __name__ == "__main__":
    main(*sys.argv[1:])
