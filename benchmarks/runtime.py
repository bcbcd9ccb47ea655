"""The overhead of rcjax in a service: time per step of a policy, and per call of a running cascade.

    python -m benchmarks.runtime [--calls 2000]

Steps are timed alone, the fastest of seven runs of 20,000. A cascade asks a server on loopback, in a process of its
own, which answers at once, one request at a time and then 64; beside it, the client of OpenAI alone sends the same
requests and reads the JSON of the replies. CPU time is that of the asking process, the least of five rounds, in which
the ways to ask take turns. Needs `pip install 'rcjax[run]'`. Prints Markdown tables.
"""

import asyncio
import itertools
import json
import math
import multiprocessing
import tempfile
import time
import timeit
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks import record
from rcjax.policy import Calibration, Policy, Rule
from rcjax.policy.ladder import Ladder
from rcjax.policy.signals import Choice
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade, ServiceOptions

_TOP = {"B": -0.1, **{letter: -3.5 - i for i, letter in enumerate("ACDEFGHIJKLMNOPQRST")}}


def make_policy(transform: Any) -> Policy:
    """Three models, of which the first answers above a threshold."""
    names = ("small", "middle", "large")
    calibration = Calibration(transform, intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
    ask = {name: (Rule(0.5, "ask", after), Rule(1.0, "answer")) for name, after in itertools.pairwise(names)}
    return Policy(
        names,
        dict.fromkeys(names, calibration),
        {**ask, "large": (Rule(1.0, "answer"),)},
        dict.fromkeys(names, 1e-5),
        {name: {"input": 0.1, "output": 0.4} for name in names},
    )


def steps() -> list[tuple[str, float]]:
    """(what, microseconds)."""
    rows = []
    for transform in ("choice", "generation", "none"):
        policy = make_policy(transform)
        for name, given in (("logprob", -0.1), ("confidence", 0.9)):
            step = f"policy.step('small', {name}={given})"
            rows.append((f"`step({name}=…)`, {transform}", _fastest(step, {"policy": policy})))
    rungs = tuple(replace(policy, expected={"cost": cost}) for cost in (1e-5, 2e-5))
    ladder = Ladder(rungs, 0.5)
    rows.append(("`Ladder.choose(query)`", _fastest("ladder.choose('query-17')", {"ladder": ladder})))
    return rows


def _fastest(statement: str, names: dict[str, Any], number: int = 20_000) -> float:
    return min(timeit.repeat(statement, globals=names, number=number, repeat=7)) / number * 1e6


def serve(port: Any) -> None:
    """Answer every request alike, until the process is ended."""
    content = [{"token": "B", "logprob": -0.1, "top_logprobs": [{"token": t, "logprob": p} for t, p in _TOP.items()]}]
    choice = {"index": 0, "message": {"role": "assistant", "content": "B"}, "logprobs": {"content": content}}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 1}}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                size = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
                await reader.readexactly(size)
                writer.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(exchange, "127.0.0.1", 0, backlog=256)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def calls(base_url: str, count: int, folder: Path) -> list[tuple[str, int, float, float]]:
    """(what, how many at a time, seconds and seconds of CPU per call)."""
    messages, rows = [{"role": "user", "content": "Which planet is largest? A, B, C or D?"}], []
    async with AsyncOpenAI(api_key="none", base_url=base_url) as client:
        create = client.chat.completions.with_raw_response.create

        async def bare() -> None:
            json.loads((await create(model="small", messages=messages, logprobs=True, top_logprobs=20)).content)  # type: ignore[arg-type]

        for width in (1, 64):
            with CallLog(folder / f"calls-{width}.jsonl") as log:
                signal, service = Choice(), ServiceOptions(concurrency=width)
                plain = Cascade(make_policy("choice"), client, signal=signal, service=service)
                logged = Cascade(make_policy("choice"), client, signal=signal, log=log, service=service)
                ways: dict[str, Callable[[], Awaitable[Any]]] = {
                    "the client alone": bare,
                    "`Cascade.ask`": lambda plain=plain: plain.ask(messages, "q"),
                    "`Cascade.ask`, logged": lambda logged=logged: logged.ask(messages, "q"),
                }
                await _many(bare, width, 3 * width)  # connections are made
                rounds = [[await _many(way, width, count // 5) for way in ways.values()] for _ in range(5)]
                for name, times in zip(ways, zip(*rounds, strict=True), strict=True):
                    rows.append((name, width, *map(min, zip(*times, strict=True))))
    return rows


async def _many(way: Callable[[], Awaitable[Any]], width: int, count: int) -> tuple[float, float]:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await way()

    start, busy = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(width)))
    return (time.perf_counter() - start) / count, (time.process_time() - busy) / count


def signals() -> float:
    """Microseconds that reading a choice from twenty log-probabilities takes."""
    from rcjax.policy.signals import Reply, Token

    reply = Reply(("B",), (Token("B", -0.1, _TOP),))
    assert math.isclose(Choice().read(reply).logprob, -0.1)
    return _fastest("signal.read(reply)", {"signal": Choice(), "reply": reply})


def main() -> None:
    """Both tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="requests for each figure")
    arguments = parser.parse_args()
    print("| | µs |\n|---|--:|")
    known = [*steps()]
    times = [microseconds for _, microseconds in known]
    record.headline("a step of a policy", f"{min(times):.1f} to {max(times):.1f} µs")
    for name, microseconds in [*known, ("`Choice.read`, 20 log-probabilities", signals())]:
        print(f"| {name} | {microseconds:.2f} |")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            url = f"http://127.0.0.1:{ours.recv()}/v1"
            rows = asyncio.run(calls(url, arguments.calls, Path(folder)))
    finally:
        process.terminate()
    alone = {width: busy for name, width, _, busy in rows if name == "the client alone"}
    print("\n| | at a time | calls/s | CPU per call, µs | more than the client, µs |\n|---|--:|--:|--:|--:|")
    for name, width, seconds, busy in rows:
        more = "" if busy == alone[width] else f"{(busy - alone[width]) * 1e6:,.0f}"
        print(f"| {name} | {width} | {1 / seconds:,.0f} | {busy * 1e6:,.0f} | {more} |")
        if more and width > 1:
            record.headline(f"what {name} adds to a call of OpenAI's client, {width} at a time", f"{more} µs of CPU")


if __name__ == "__main__":
    record.run(main)
