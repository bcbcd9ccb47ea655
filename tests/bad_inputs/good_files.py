"""A good file of each kind, in one folder."""

import json
from pathlib import Path

import jax
from command_line import TOKEN_PRICES, rows_of, write_log

import rcjax

QUERIES = 60
EVALUATION = Path(__file__).parents[1] / "logs" / "foreign" / "files" / "promptfoo" / "results.json"
LOG = "log.csv"
FILES = {
    "log": LOG,
    "labels": "labels.csv",
    "prices": "prices.json",
    "policy": "policy.json",
    "frontier": "frontier.json",
    "sweep": "sweep.toml",
    "evaluation": "results.json",
}


def write_good_files(folder: Path) -> dict[str, Path]:
    """A log of three models and all that can go with it; the paths by kind."""
    rows = rows_of(seed=0, n=QUERIES)
    write_log(folder / LOG, rows)
    write_log(folder / FILES["labels"], rows, "query,model,correct")
    prices = {name: {"input": price, "output": price} for name, price in TOKEN_PRICES.items()}
    (folder / FILES["prices"]).write_text(json.dumps(prices))
    with jax.enable_x64(True):
        tuned = rcjax.read_log(folder / "log.csv", task="choice")
        frontier = rcjax.solve_frontier(rcjax.fit(tuned), lam=[100.0, 1000.0, 10_000.0])
        frontier.save(folder / FILES["frontier"])
        frontier.policy(lam=1000.0).save(folder / FILES["policy"])
    (folder / FILES["sweep"]).write_text('name = "good"\nlogs = ["log.csv"]\n')
    whole = json.loads(EVALUATION.read_text())
    for row in whole["results"]["results"]:
        row["provider"]["label"] = {"toy-small": "small", "toy-large": "large"}[row["provider"]["label"]]
    (folder / FILES["evaluation"]).write_text(json.dumps(whole))
    return {kind: folder / name for kind, name in FILES.items()}
