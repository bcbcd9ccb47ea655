"""Tool calls: what agreement of two cheap models saves, from a log of calls to a service.

    python -m benchmarks.calls [--data DIR] [--splits 5] [--labels 300] [--serve 2000] [--record]

The logs have no confidence, and canonical calls as answers. `bfcl2024` is DIR/public/bfcl2024_calls.csv, made from
results that the Berkeley Function Calling Leaderboard publishes. `live` is simulated with the agreement and the errors
of gpt-oss-20b, gpt-oss-120b and Opus 4.5 on its live questions. For each split, `rcjax.tune` finds a policy on so many
labels, for a share of the large model's bill, and a policy that matches the large model within a point of error. Both
are replayed on all other queries and compared with the large model there; intervals are 95 %, over queries. Beside them
is the policy that asks both cheap models every question.

With --serve, so many requests go through `rcjax serve` by the official client of OpenAI, in turn as chat, as a stream
and as a response. The models asked, the answers and the costs are compared with the replay, query by query.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import uvicorn
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import rcjax
from benchmarks import record
from benchmarks.gateway.servers import free_port
from benchmarks.report import machine, markdown
from rcjax.policy.signals.answers import NO_CALL, canonical_calls
from rcjax.policy.spec import Spec
from rcjax.tuning.replaying.replay import replay_queries, replay_rungs

#: Money of a token, so that a cost in dollars is a whole number of tokens.
TOKEN = 1e-9

#: Of the large model's bill, that is to be spent: what the policy of two cheap models takes.
SHARES = {"bfcl2024": 0.50, "live": 0.37}

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}},
}


def call_of(code: str, nothing: str) -> str:
    """A canonical call for the code of an answer; none for the code of no call."""
    calls = [] if code == nothing else [{"name": "look_up", "arguments": {"key": code}}]
    return canonical_calls(calls) or NO_CALL


def bfcl(folder: Path) -> pl.DataFrame:
    """The public log: the commonest answer is no call."""
    frame = pl.read_csv(folder / "public" / "bfcl2024_calls.csv", schema_overrides={"answer": pl.String})
    nothing = frame["answer"].value_counts(sort=True)["answer"][0]
    answers = [call_of(code, nothing) for code in frame["answer"]]
    paid = pl.when(pl.col("cost") > 0).then("cost")  # of some calls the tokens are lost: they count as the mean
    cost = pl.coalesce(paid, paid.mean().over("model"))
    return frame.with_columns(pl.Series("answer", answers), cost=(cost / TOKEN).round().cast(pl.Int64) * TOKEN)


def live(n: int = 1351, seed: int = 0) -> pl.DataFrame:
    """A log with the agreement and errors of gpt-oss-20b, gpt-oss-120b and Opus 4.5 on users' questions."""
    rng = np.random.default_rng(seed)

    def some(share: float, among: np.ndarray) -> np.ndarray:
        """So many of the queries among some, at random."""
        places = np.flatnonzero(among)
        return np.isin(np.arange(n), rng.permutation(places)[: round(share * len(places))])

    equal = some(0.69, np.ones(n, bool))
    large_wrong = some(0.18, equal) | some(0.386, ~equal)
    # Blind spots are shared: where the large model errs, the pair agrees on a wrong call in three cases of five.
    pair_wrong = some(0.61, equal & large_wrong) | some(0.045, equal & ~large_wrong)
    second_wrong, first_wrong = pair_wrong | some(0.54, ~equal), pair_wrong | some(0.64, ~equal)
    rows = []
    for i in range(n):
        wrong = {"small": first_wrong[i], "middle": second_wrong[i], "large": large_wrong[i]}
        costs = zip((0.01, 0.025, 1.0), rng.gamma(4.0, 0.25, 3), strict=True)
        for (model, is_wrong), (scale, spread) in zip(wrong.items(), costs, strict=True):
            named = "both" if equal[i] and model != "large" else model if is_wrong or model == "small" else ""
            code = f"{i} {'wrong' if is_wrong else 'right'} {named}"
            cost = round(0.004 * scale * spread / TOKEN) * TOKEN
            row = {"query": f"live_{i}", "model": model, "correct": int(not is_wrong), "cost": cost}
            rows.append(row | {"answer": call_of(code, "")})
    return pl.DataFrame(rows)


def split(frame: pl.DataFrame, labels: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """So many queries to tune on, and all others."""
    queries = frame["query"].unique(maintain_order=True).sample(fraction=1, shuffle=True, seed=seed)
    parts = queries[:labels], queries[labels:]
    tuned, fresh = (frame.filter(pl.col("query").is_in(part.implode())) for part in parts)
    return tuned, fresh


def compared(wrong: np.ndarray, spent: np.ndarray, large_wrong: np.ndarray, large_spent: np.ndarray) -> dict[str, Any]:
    """Relative differences from the large model, with intervals of 95 % over queries by the bootstrap."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(wrong), (2000, len(wrong)))
    figures = {}
    for name, own, large in (("errors", wrong, large_wrong), ("money", spent, large_spent)):
        low, high = np.quantile(own[draws].mean(1) / large[draws].mean(1) - 1, [0.025, 0.975])
        figures[name] = f"{own.mean() / large.mean() - 1:+.1%} [{low:+.0%}, {high:+.0%}]"
    return figures


def tuned_rows(name: str, frame: pl.DataFrame, labels: int, splits: int) -> Iterator[dict[str, Any]]:
    """What `rcjax.tune` comes to on splits of a log for each target, and the policy by hand on all of it."""
    for seed in range(splits):
        learnt, fresh = split(frame, labels, seed)
        log, rest = (rcjax.read_log(part, task="generation") for part in (learnt, fresh))
        budget = SHARES[name] * float(np.asarray(rest.query_cost)[:, -1].mean())
        large = 1 - np.asarray(rest.correct, float)[:, -1], np.asarray(rest.query_cost, float)[:, -1]
        for target in (Spec(budget=budget), Spec(match=0.01, today=rest.models[-1])):
            policy = rcjax.tune(log, dataclasses.replace(target, intervals=False)).policy
            assert policy is not None
            walked = replay_queries(policy, rest)
            named = {
                "log": name,
                "split": seed,
                "for": "a budget" if target.match is None else "--match 1%",
                "asks": " → ".join(policy.models),
            }
            yield (
                named
                | compared(walked.wrong, walked.spent, *large)
                | {
                    "expected": f"{float(policy.expected['error'] or 0):.1%}",
                    "seen": f"{walked.wrong.mean():.1%}",
                }
            )
    yield {"log": name, "split": "by hand, all queries"} | by_hand(frame)


def by_hand(frame: pl.DataFrame) -> dict[str, Any]:
    """Both cheap models about everything; where they are equal, that; else the large one."""
    models = frame.group_by("model").agg(pl.col("cost").mean()).sort("cost")["model"].to_list()
    wide = {name: frame.pivot("model", index="query", values=name) for name in ("answer", "correct", "cost")}
    first, second, large = models
    equal = (wide["answer"][first] == wide["answer"][second]).to_numpy()
    right, cost = ({m: wide[name][m].to_numpy().astype(float) for m in models} for name in ("correct", "cost"))
    wrong = 1 - np.where(equal, right[second], right[large])
    spent = cost[first] + cost[second] + np.where(equal, 0.0, cost[large])
    equally = (
        f"{equal.mean():.0%}, errs there {1 - right[second][equal].mean():.1%} ({1 - right[large][equal].mean():.1%})"
    )
    return {"asks": f"equal: {equally}", **compared(wrong, spent, 1 - right[large], cost[large])}


class Models:
    """An upstream that replies to a query as the log says: with a call of a tool, or with words."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.replies = {(row["query"], row["model"]): row for row in frame.iter_rows(named=True)}
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.reply, methods=["POST"])])
        self.seconds: Mapping[str, float] = {}

    async def reply(self, request: Request) -> Any:
        """Reply to a request for a completion."""
        asked = await request.json()
        row = self.replies[asked["messages"][-1]["content"], asked["model"]]
        await asyncio.sleep(self.seconds.get(asked["model"], 0.0))
        calls = [
            {"id": f"call_{i}", "type": "function", "function": {**one, "arguments": json.dumps(one["arguments"])}}
            for i, one in enumerate(json.loads(row["answer"]))
        ]
        tokens = round(row["cost"] / TOKEN)
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        head = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}
        words = None if calls else f"I need no tool here, says {asked['model']}."
        message = {"role": "assistant", "content": words, **({"tool_calls": calls} if calls else {})}
        finish = "tool_calls" if calls else "stop"
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        deltas = [
            {"role": "assistant", "content": words},
            *({"tool_calls": [{"index": i, **c}]} for i, c in enumerate(calls)),
        ]
        parts = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        parts += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
        events = [f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', **part})}\n\n" for part in parts]
        return StreamingResponse(iter([*events, "data: [DONE]\n\n"]), media_type="text/event-stream")


@contextmanager
def listening(app: Any) -> Iterator[int]:
    """The port of an application in a thread of this process."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serving(folder: Path, port: int, models: Sequence[str], *options: str) -> Iterator[str]:
    """The address of `rcjax serve policy.json` in a folder, of models at a port."""
    table = '["{}"]\nbase_url = "http://127.0.0.1:{}/v1"\ninput = 0.001\noutput = 0\nsignal = "call"\n'
    (folder / "models.toml").write_text("".join(table.format(name, port) for name in models))
    words = [str(Path(sys.executable).parent / "rcjax"), "serve", "policy.json", "--models", "models.toml"]
    words += ["--log", "calls.jsonl", "--port", "0", "--json", "--yes", *options]
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if "url" not in said:
            raise SystemExit(said + (folder / "stderr").read_text())
        yield json.loads(said)["url"]
    finally:
        process.terminate()
        process.wait()


async def ask(client: AsyncOpenAI, query: str, kind: str) -> dict[str, Any]:
    """What a client gets by chat, a stream or a response: the calls in canonical form, and what the gateway did."""
    asked: dict[str, Any] = {"model": "policy", "extra_headers": {"x-rcjax-query": query}}
    if kind == "response":
        tool: Any = {"type": "function", **TOOL["function"], "strict": False}
        reply = (await client.responses.create(input=query, tools=[tool], **asked)).model_dump()
        items = [item for item in reply["output"] if item["type"] == "function_call"]
        return {"answer": canonical_calls(items), "rcjax": reply["rcjax"]}
    asked |= {"messages": [{"role": "user", "content": query}], "tools": [TOOL]}
    if kind == "chat":
        reply = (await client.chat.completions.create(**asked)).model_dump()
        return {"answer": canonical_calls(reply["choices"][0]["message"]["tool_calls"] or []), "rcjax": reply["rcjax"]}
    calls, told = dict[int, dict[str, Any]](), {}
    stream = await client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    async for chunk in stream:
        data = chunk.model_dump()
        told = data.get("rcjax") or told
        for choice in data["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                calls[call["index"]] = call["function"]  # whole: calls that were judged come in one piece
    return {"answer": canonical_calls([*calls.values()]), "rcjax": told}


async def ask_all(url: str, queries: Sequence[str]) -> list[dict[str, Any]]:
    """What clients get, eight at a time; by chat, a stream and a response in turn."""
    slots, kinds = asyncio.Semaphore(8), ("chat", "stream", "response")
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def one(number: int, query: str) -> dict[str, Any]:
            async with slots:
                return await ask(client, query, kinds[number % 3]) | {"query": query}

        return await asyncio.gather(*(one(*pair) for pair in enumerate(queries)))


def served(frame: pl.DataFrame, name: str, requests: int, labels: int) -> dict[str, Any]:
    """How many requests to a service did another thing than the replay of their rung, and what they cost and erred."""
    learnt, fresh = split(frame, labels, 0)
    copies = -(-requests // fresh["query"].n_unique())
    tagged = [fresh.with_columns(query=pl.format("{}#{}", pl.col("query"), pl.lit(copy))) for copy in range(copies)]
    queries = pl.concat(tagged)["query"].unique(maintain_order=True)[:requests]
    stream = pl.concat(tagged).filter(pl.col("query").is_in(queries.implode()))
    log, rest = (rcjax.read_log(part, task="generation") for part in (learnt, stream))
    budget = SHARES[name] * float(np.asarray(rest.query_cost)[:, -1].mean())
    policy = rcjax.tune(log, budget=budget, intervals=False).policy
    assert policy is not None
    with tempfile.TemporaryDirectory() as place, listening(Models(stream).app) as port:
        policy.save(Path(place) / "policy.json")
        with serving(Path(place), port, log.models) as url:
            start = time.perf_counter()
            came = asyncio.run(ask_all(url, queries.to_list()))
            seconds = time.perf_counter() - start
    walked, place_of = replay_rungs(policy, rest), {query: i for i, query in enumerate(rest.queries)}
    names = {(row["query"], row["model"]): row["answer"] for row in stream.iter_rows(named=True)}
    right = {(row["query"], row["model"]): row["correct"] for row in stream.iter_rows(named=True)}
    wrong, different = list[int](), Counter[str]()
    for one in came:
        told, row, rung = one["rcjax"], place_of[one["query"]], one["rcjax"]["rung"] or 0
        asked = {policy.models[k] for k in np.flatnonzero(walked.asked[rung][:, row])}
        (answering,) = np.flatnonzero(walked.answered_by[rung][:, row])
        different["asked"] += {*told["models"]} != asked
        different["answered by"] += told["model"] != policy.models[answering]
        different["answer"] += one["answer"] != names[one["query"], told["model"]]
        different["cost"] += not np.isclose(told["cost"], walked.spent[rung][row], rtol=1e-5)  # in single precision
        wrong.append(1 - right[one["query"], told["model"]])
    figures = compared(
        np.array(wrong, float),
        np.array([one["rcjax"]["cost"] for one in came]),
        np.array([1 - right[one["query"], rest.models[-1]] for one in came], float),
        np.asarray(rest.query_cost, float)[[place_of[one["query"]] for one in came], -1],
    )
    counts = {f"other {what}": different[what] for what in ("asked", "answered by", "answer", "cost")}
    speed = {"requests a second": f"{len(came) / seconds:.0f}"}
    return {"log": name, "requests": len(came), **counts, **figures, **speed}


def main() -> None:
    """Print the tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder with public/bfcl2024_calls.csv")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--serve", type=int, default=0, metavar="REQUESTS")
    options = parser.parse_args()
    logs = {} if options.data is None else {"bfcl2024": bfcl(options.data)}
    logs["live"] = live()
    print(machine())
    rows = [row for name, frame in logs.items() for row in tuned_rows(name, frame, options.labels, options.splits)]
    print(markdown(pl.DataFrame(rows, infer_schema_length=None, strict=False)))
    if options.serve:
        rows = [served(frame, name, options.serve, options.labels) for name, frame in logs.items()]
        print(markdown(pl.DataFrame(rows)))


if __name__ == "__main__":
    record.run(main)
