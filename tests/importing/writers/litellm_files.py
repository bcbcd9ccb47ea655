"""Writes the logs of LiteLLM among the files beside, from a toy server: `python litellm_files.py FOLDER`.

Those that are kept were written by litellm 1.110.2: its callback `generic_api` sends the standard logging payloads, as
JSON Lines (`ndjson`) and as an array (its default); what it sends is appended to a file as it is.
"""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the list of prices that comes with it

import litellm
from litellm.integrations.generic_api.generic_api_callback import GenericAPILogger
from toy_api import MODELS, QUESTIONS, serve

TOOL = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {}}}}


async def main(folder: Path) -> None:
    for name, form, asked in (("calls.jsonl", "ndjson", QUESTIONS), ("calls.json", "json_array", QUESTIONS[:3])):
        path = folder / name
        path.unlink(missing_ok=True)
        server = serve(path)
        base = f"http://127.0.0.1:{server.server_port}"
        logger = GenericAPILogger(endpoint=f"{base}/log", log_format=form)
        litellm.logging_callback_manager._reset_all_callbacks()
        litellm.callbacks = [logger]
        for model in MODELS:
            prices = {"input_cost_per_token": 1e-7, "output_cost_per_token": 4e-7}
            if model == "toy-large":
                prices = {"input_cost_per_token": 2.5e-6, "output_cost_per_token": 1e-5}
            how = {"model": f"openai/{model}", "api_base": base, "api_key": "none", "num_retries": 0, **prices}
            how |= {"logprobs": True, "top_logprobs": 2} if form == "ndjson" else {}
            for number, question in enumerate(asked):
                messages = [{"role": "user", "content": question}]
                metadata = {"requester_metadata": {"id": f"sum-{number}"}}
                await litellm.acompletion(messages=messages, metadata=metadata, **how)
            if form == "ndjson":
                with contextlib.suppress(litellm.BadRequestError):
                    await litellm.acompletion(messages=[{"role": "user", "content": "What is 13 + 1?"}], **how)
                tools = [{"role": "user", "content": "What is 20 + 1?"}]
                await litellm.acompletion(messages=tools, tools=[TOOL], **how)
        await asyncio.sleep(3)
        await logger.async_send_batch()
        text = path.read_text().replace(str(Path(litellm.__file__).parents[1]), "site-packages")  # in tracebacks
        path.write_text(text)


#: Entries of the list of prices: chat models, and what has no prices per token of text.
ENTRIES = (
    *("sample_spec", "gpt-4o-mini", "azure/eu/gpt-4o-mini", "claude-sonnet-4-5"),
    *("vertex_ai/meta/llama-3.1-8b-instruct-maas", "azure/gpt-image-1.5", "aiml/dall-e-3", "text-embedding-3-small"),
    *("whisper-1", "bedrock/*/1-month-commitment/cohere.command-text-v14"),
)


def write_prices(path: Path) -> None:
    source = Path(litellm.__file__).with_name("model_prices_and_context_window_backup.json")
    content = json.loads(source.read_text())
    path.write_text(json.dumps({name: content[name] for name in ENTRIES}, indent=1) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_prices(target / "prices.json")
    asyncio.run(main(target))
