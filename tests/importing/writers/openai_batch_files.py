"""Writes the output of OpenAI's batches among the files beside: `python openai_batch_files.py FOLDER`.

Only OpenAI itself writes such files: these are by its documentation. Bodies are what the toy server replies, checked
against the types of openai 3.57.0; lines are as its reference has them (BatchRequestOutput), one with an error.
"""

import json
import sys
from pathlib import Path

from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from toy_api import MODELS, QUESTIONS, reply_to

FAILED = {
    "code": "batch_expired",
    "message": "This request could not be executed in time.",
}


def as_response(reply: dict) -> dict:
    """The same reply from /v1/responses."""
    choice, usage = reply["choices"][0], reply["usage"]
    logprobs = [{**token, "bytes": []} for token in choice["logprobs"]["content"]]
    for token in logprobs:
        token["top_logprobs"] = [{**one, "bytes": []} for one in token["top_logprobs"]]
    part = {"type": "output_text", "text": choice["message"]["content"], "annotations": [], "logprobs": logprobs}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": reply["created"],
        "status": "completed",
        "model": reply["model"],
        "output": [{"id": "rs_1", "type": "reasoning", "summary": []}, message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def as_completion(reply: dict) -> dict:
    """The same reply from /v1/completions."""
    choice = reply["choices"][0]
    (token,) = choice["logprobs"]["content"]
    logprobs = {"tokens": [token["token"]], "token_logprobs": [token["logprob"]], "text_offset": [0]}
    plain = {"index": 0, "text": token["token"], "finish_reason": "length", "logprobs": logprobs}
    return {**reply, "object": "text_completion", "choices": [plain]}


def line(number: int, body: dict | None) -> dict:
    response = {"status_code": 200, "request_id": f"req_{number}", "body": body} if body else None
    told = {"response": response, "error": None if body else FAILED}
    return {"id": f"batch_req_{number}", "custom_id": f"sum-{number}", **told}


def main(folder: Path) -> None:
    forms = {
        "chat": (lambda reply: reply, ChatCompletion),
        "responses": (as_response, Response),
        "completions": (as_completion, Completion),
    }
    for kind, (form, checked) in forms.items():
        for model in MODELS:
            lines = []
            for number, question in enumerate(QUESTIONS):
                request = {"model": model, "messages": [{"role": "user", "content": question}], "logprobs": True}
                body = form(reply_to(request))
                checked.model_validate(body)
                lines.append(line(number, None if number == 7 and model == MODELS[0] else body))
            path = folder / f"{kind}_{model}.jsonl"
            path.write_text("".join(json.dumps(one) + "\n" for one in lines))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    main(target)
