"""A good file of each kind, in one folder."""

import json
from pathlib import Path

import jax

import rcjax
from helpers.command_line import TOKEN_PRICES, rows_of, write_log

QUERIES = 60
EVALUATION = Path(__file__).parents[2] / "logs" / "importing" / "files" / "promptfoo" / "results.json"
LOG = "log.csv"
FILES = {
    "log": LOG,
    "labels": "labels.csv",
    "unlabelled": "unlabelled.csv",
    "said": "said.csv",
    "prices": "prices.json",
    "policy": "policy.json",
    "sweep": "sweep.toml",
    "evaluation": "results.json",
    "questions": "questions.jsonl",
    "models": "models.toml",
    "answers": "answers.jsonl",
    "rubric": "rubric.txt",
}


def write_good_files(folder: Path) -> dict[str, Path]:
    """A log of three models and all that can go with it; the paths by kind."""
    rows = rows_of(seed=0, n=QUERIES)
    write_log(folder / LOG, rows)
    write_log(folder / FILES["labels"], rows, "query,model,correct")
    write_log(folder / FILES["unlabelled"], rows, "query,model,logprob,cost,input_tokens,output_tokens")
    said = "".join(f"{query},{model},{'A' if right else 'B'}\n" for query, model, _, right, *_ in rows)
    (folder / FILES["said"]).write_text("query,model,answer\n" + said)
    prices = {name: {"input": price, "output": price} for name, price in TOKEN_PRICES.items()}
    (folder / FILES["prices"]).write_text(json.dumps(prices))
    with jax.enable_x64(True):
        tuned = rcjax.read_log(folder / "log.csv", task="choice")
        frontier = rcjax.solve_frontier(rcjax.fit(tuned), lam=[100.0, 1000.0, 10_000.0])
        frontier.policy(lam=1000.0).save(folder / FILES["policy"])
    (folder / FILES["sweep"]).write_text('name = "good"\nlogs = ["log.csv"]\n')
    whole = json.loads(EVALUATION.read_text())
    for row in whole["results"]["results"]:
        row["provider"]["label"] = {"toy-small": "small", "toy-large": "large"}[row["provider"]["label"]]
    (folder / FILES["evaluation"]).write_text(json.dumps(whole))
    (folder / FILES["questions"]).write_text('{"query": "q1", "prompt": "2 + 2?", "answer": "4"}\n')
    price = "input = 1\noutput = 2\n"
    (folder / FILES["models"]).write_text(f'[small]\nbase_url = "http://localhost:9/v1"\n{price}')
    answer = {"call_log": 1, "call": "a", "query": "q1", "model": "small", "text": "4", "reference": ["4"]}
    asked = {"request_settings": '{"signal": "stated"}'}
    verdict = {"correct": True, "graded_by": "number", "logprob": -0.1, "cost": 0.0, "error": None} | asked
    (folder / FILES["answers"]).write_text(json.dumps(answer | verdict) + "\n")
    (folder / FILES["rubric"]).write_text("{question} {reference} {answer}: Y or N?")
    return {kind: folder / name for kind, name in FILES.items()}
