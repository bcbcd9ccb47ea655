"""Logs of calls, and wide tables: what is imported is what the programs that wrote the files (`README.md`) report."""

import csv
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from rcjax.logs.errors import LogError
from rcjax.logs.importing.api_logs import read_messages
from rcjax.logs.importing.evaluations import ImportOptions, detect_format, import_evaluations
from rcjax.policy.signals.answers import hash_json

FILES = Path(__file__).parent / "files"
LITELLM = FILES / "litellm" / "calls.jsonl"
BATCHES = {kind: sorted((FILES / "openai_batch").glob(f"{kind}_*")) for kind in ("chat", "responses", "completions")}
WIDE = FILES / "wide" / "table.csv"


def imported(*paths, **how):
    return import_evaluations(paths, ImportOptions(**how))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_litellm():
    payloads = lines(LITELLM)
    told = {(one["model"], one["messages"][0]["content"]): one for one in payloads if one["status"] == "success"}
    evaluations = imported(LITELLM, prompts=True)
    assert evaluations.left_out == "2 answers left out: 2 with an error"
    frame = evaluations.frame
    assert frame.group_by("model", maintain_order=True).len().rows() == [("toy-small", 9), ("toy-large", 9)]
    assert frame["correct"].to_list() == [None] * 18
    for row in frame.iter_rows(named=True):
        payload = told[row["model"], row["prompt"]]
        choice = payload["response"]["choices"][0]
        calls = choice["message"].get("tool_calls")
        assert row["answer"] == ('[{"arguments":{},"name":"sum"}]' if calls else choice["message"]["content"])
        told_logprob = pytest.approx(choice["logprobs"]["content"][0]["logprob"])
        assert row["logprob"] == (None if calls else told_logprob)  # of calls no confidence is read
        assert (row["input_tokens"], row["output_tokens"]) == (payload["prompt_tokens"], payload["completion_tokens"])
        assert row["cost"] == payload["response_cost"]
        assert row["seconds"] == pytest.approx(payload["response_time"], abs=1e-3)
    assert frame["query"].n_unique() == 9  # the same for both models, by the messages


def test_litellm_as_an_array_with_queries_of_ones_own():
    evaluations = imported(LITELLM.with_suffix(".json"), columns={"query": "metadata.requester_metadata.id"})
    assert evaluations.frame["query"].to_list() == ["sum-0", "sum-1", "sum-2"] * 2
    assert evaluations.frame["logprob"].to_list() == [0.0] * 6  # asked without log-probabilities
    assert any("only whether answers agree counts" in note for note in evaluations.assumed)
    assert "prompt" not in evaluations.frame.columns
    with pytest.raises(LogError, match=r"line 1, entry 1: no value at metadata.my_id, which is to be"):
        imported(LITELLM.with_suffix(".json"), columns={"query": "metadata.my_id"})


def spent(payload):
    """A payload as the proxy's table of spend logs has it: all texts and numbers."""
    times = {end: datetime.fromtimestamp(payload[end], UTC).isoformat() for end in ("startTime", "endTime")}
    kept = ("call_type", "model", "model_group", "prompt_tokens", "completion_tokens", "status")
    asked = json.dumps({"messages": payload["messages"], **payload["model_parameters"]})
    return times | {name: payload[name] for name in kept} | {
        "request_id": payload["id"], "spend": payload["response_cost"], "cache_hit": "False", "messages": "{}",
        "proxy_server_request": asked, "response": json.dumps(payload["response"]),
    }  # fmt: skip


def test_spend_logs_of_litellm(tmp_path):
    path = tmp_path / "spend.json"
    path.write_text(json.dumps([spent(payload) for payload in lines(LITELLM)]))
    assert detect_format(path).name == "litellm"
    told, same = imported(path, prompts=True), imported(LITELLM, prompts=True)
    assert told.left_out == same.left_out
    assert told.frame.drop("seconds").equals(same.frame.drop("seconds"))
    assert told.frame["seconds"].to_list() == pytest.approx(same.frame["seconds"].to_list(), abs=1e-5)
    path.write_text(json.dumps([spent(payload) | {"proxy_server_request": "{}"} for payload in lines(LITELLM)]))
    with pytest.raises(LogError, match=r"without messages .*store_prompts_in_spend_logs"):
        imported(path)


def test_tokens_outside_of_prompt_and_completion_are_paid_for(tmp_path):
    """Hidden reasoning that the total alone tells, and input from a cache, inside of the input or beside it."""
    inside = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 1105}
    inside |= {"prompt_tokens_details": {"cached_tokens": 60}}
    beside = {"input_tokens": 40, "output_tokens": 1005, "cache_read_input_tokens": 60}
    body = {"model": "m", "choices": [{"message": {"content": "7"}}]}
    batch = [
        {"custom_id": str(n), "error": None, "response": {"status_code": 200, "body": body | {"usage": usage}}}
        for n, usage in enumerate((inside, beside))
    ]
    (tmp_path / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in batch))
    for row in imported(tmp_path / "batch.jsonl").frame.iter_rows(named=True):
        assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"]) == (100, 1005, 60)


def test_no_prompt_has_zero_tokens(tmp_path):
    """Programs write zeros for what was not counted: it is estimated by the texts, in whatever format, and not free."""
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    texts = {"prompt": "Who wrote this book?", "answer": "Nobody knows"}  # 20 and 12 characters
    response = {"choices": [{"message": {"content": texts["answer"]}}], "usage": nothing}
    call = {"call_type": "acompletion", "model": "m", "response": response, "response_cost": 0.0}
    call |= {"messages": [{"role": "user", "content": texts["prompt"]}], "status": "success", "model_group": "m"}
    result = {"provider": {"id": "m"}, "prompt": {"raw": texts["prompt"]}, "success": True}
    result |= {"response": {"output": texts["answer"], "tokenUsage": {"prompt": 0, "completion": 0, "total": 0}}}
    (tmp_path / "litellm.jsonl").write_text(json.dumps(call))
    (tmp_path / "promptfoo.json").write_text(json.dumps({"evalId": "e", "results": {"results": [result]}}))
    for path in tmp_path.iterdir():
        (row,) = imported(path).frame.rows(named=True)
        assert (row["input_tokens"], row["output_tokens"]) == (5, 3), path.name


@pytest.mark.parametrize("kind", ["chat", "responses", "completions"])
def test_openai_batch(kind):
    evaluations = imported(*BATCHES[kind])
    assert evaluations.left_out == "1 answer left out: 1 with an error"
    frame = evaluations.frame
    assert frame["model"].unique(maintain_order=True).to_list() == ["toy-large-2026-01-01", "toy-small-2026-01-01"]
    for row in frame.iter_rows(named=True):
        number, large = int(row["query"].removeprefix("sum-")), "large" in row["model"]
        right = number != 3 if large else number % 3 != 0
        assert row["answer"] == str(number + right)
        assert row["logprob"] == pytest.approx((-0.02 if large else -0.1) * (number + 1))
        assert (row["input_tokens"], row["output_tokens"]) == (20 + number, 2)
    cut = [note for note in evaluations.assumed if "ended at a limit of tokens" in note]
    assert len(cut) == (2 if kind == "completions" else 0)


def test_a_wide_table_has_columns_for_each_model():
    with open(WIDE, newline="") as file:
        table = list(csv.DictReader(file))
    evaluations = imported(WIDE, format="wide", prompts=True)
    frame = evaluations.frame
    assert frame.group_by("model", maintain_order=True).len().rows() == [("toy-small", 8), ("toy-large", 8)]
    for row in frame.iter_rows(named=True):
        cells, name = next(one for one in table if one["sample_id"] == row["query"]), f"org/{row['model']}"
        assert row["correct"] == float(cells[name])
        assert str([row["answer"]]) == cells[f"{name}|model_response"]
        assert str([row["prompt"]]) == cells["prompt"]
        assert row["cost"] == float(cells[f"{name}|total_cost"])


def test_a_wide_table_may_have_other_names(tmp_path):
    frame = pl.DataFrame(
        {
            "q": ["1", "2", "3"],
            "a": [1.0, 0.5, None],
            "a|p": [0.5, 0.25, 0.1],
            "a|usd": [1.0, 2.0, 3.0],
            "b|answer": "xyz",
        }
        | {"b|usd": [3.0, 3.0, 3.0], "note|text": "no model", "c": 1}
    )
    names = {"query": "q", "confidence": "p", "cost": "usd"}
    for ending in ("csv", "parquet", "jsonl", "json"):
        path = tmp_path / f"wide.{ending}"
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson, "json": frame.write_json}[
            ending
        ](path)
        evaluations = imported(path, format="wide", columns=names)
        rows = evaluations.frame.select("query", "model", "score", "logprob", "cost").rows()
        half, quarter = math.log(0.5), math.log(0.25)
        of_a = [("1", "a", 1, pytest.approx(half), 1.0), ("2", "a", 0.5, pytest.approx(quarter), 2.0)]
        assert rows == [*of_a, *((str(number), "b", None, 0.0, 3.0) for number in (1, 2, 3))]
        assert evaluations.left_out == "1 answer left out: 1 without a score or an answer"


def test_a_repeated_prompt_is_not_part_of_the_answer(tmp_path):
    """Its first token has no log-probability: the whole of it had none, "as the files have none"."""
    tokens = ["Which", "?", " It", " is", " B"]
    logprobs = {"tokens": tokens, "token_logprobs": [None, -5.0, -0.5, -0.25, -0.75], "top_logprobs": None}
    choice = {"index": 0, "text": "".join(tokens), "logprobs": logprobs, "finish_reason": "stop"}
    body = {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    path = tmp_path / "batch.jsonl"
    rows = [{"custom_id": one, "response": {"status_code": 200, "body": body}, "error": None} for one in "ab"]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    frame = imported(path).frame
    assert frame["answer"].to_list() == ["It is B"] * 2
    assert frame["logprob"].to_list() == [-0.5] * 2


def tool_call(name, arguments, number="1"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLED = [
    (
        [tool_call("f", '{"x": 1.0}'), tool_call("g", "{}", "2")],
        '[{"arguments":{"x":1},"name":"f"},{"arguments":{},"name":"g"}]',
    ),
    ([tool_call("f", "{")], None),  # cannot be read, and agrees with nothing
]


def test_calls_of_tools_in_a_batch_are_answers(tmp_path):
    path = tmp_path / "batch.jsonl"
    rows = []
    for model in ("toy-small", "toy-large"):
        for i, (calls, _) in enumerate(CALLED):
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            usage = {"prompt_tokens": 9, "completion_tokens": 5}
            body = {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}
            rows.append({"custom_id": str(i), "response": {"status_code": 200, "body": body}, "error": None})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = imported(path).frame
    assert frame["answer"].to_list() == [form for _, form in CALLED] * 2
    assert frame["logprob"].to_list() == [0.0] * 4  # there is no confidence: all count as sure


def test_calls_in_a_response_are_answers(tmp_path):
    path = tmp_path / "batch.jsonl"
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'}
    for model in ("toy-small", "toy-large"):
        for i in range(2):
            body = {"object": "response", "model": model, "status": "completed", "output": [call]}
            body["usage"] = {"input_tokens": 9, "output_tokens": 5}
            row = {"custom_id": str(i), "response": {"status_code": 200, "body": body}, "error": None}
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    assert imported(path).frame["answer"].to_list() == ['[{"arguments":{"x":1},"name":"f"}]'] * 4


def test_calls_in_the_log_of_litellm_are_answers_and_so_is_none(tmp_path):
    path = tmp_path / "calls.jsonl"
    rows = []
    for payload in lines(LITELLM):
        if payload["status"] == "success" and payload["response"]["choices"][0]["message"].get("content"):
            payload["model_parameters"] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
            message = payload["response"]["choices"][0]["message"]
            if payload["model"] == "toy-small":
                message |= {"content": None, "tool_calls": [tool_call("f", "")]}
                payload["response"]["choices"][0]["logprobs"] = None
            rows.append(payload)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = imported(path).frame
    answers = dict(frame.group_by("model").agg(pl.col("answer").unique()).iter_rows())
    assert answers == {"toy-small": ['[{"arguments":{},"name":"f"}]'], "toy-large": ["[]"]}


def test_tools_distinguish_queries(tmp_path):
    path, rows = tmp_path / "calls.jsonl", []
    for tool in "fgf":
        payload = next(one for one in lines(LITELLM) if one["status"] == "success")
        payload["model_parameters"] = {"tools": [{"type": "function", "function": {"name": tool}}]}
        rows.append(payload)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert imported(path).frame["query"].n_unique() == 2


def test_earlier_calls_distinguish_queries():
    asked = [{"role": "assistant", "content": None, "tool_calls": [tool_call("f", "{}")]}]
    other = [{"role": "assistant", "content": None, "tool_calls": [tool_call("g", "{}")]}]
    assert hash_json(read_messages(asked)) != hash_json(read_messages(other))
