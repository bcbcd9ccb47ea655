"""Logs in files for the command line, and commands run in this process."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import typer
from typer.testing import CliRunner

import rcjax
from rcjax.cli.app import app

# The runner builds all commands for each call, which is most of the time of a call that is refused.
typer.testing._get_command = cache(typer.main.get_command)  # pyright: ignore

NAMES = {"llama3.2-1b": "small", "llama3.1-8b": "middle", "llama3.1-70b": "large"}
TOKEN_PRICES = {"small": 0.1, "middle": 0.2, "large": 0.9}


def rows_of(seed: int, n: int = 384) -> list[tuple]:
    """(query, model, logprob, correct, cost, input_tokens, output_tokens) of a synthetic log."""
    log = rcjax.sample_log(n, seed).select(NAMES)
    logprob, correct = np.asarray(log.logprob), np.asarray(log.correct)
    rows = []
    for i in range(n):
        for j, name in enumerate(NAMES.values()):
            tokens = 100 + 37 * i % 211
            cost = TOKEN_PRICES[name] * (tokens + 1) / 1e6
            rows.append((i, name, logprob[i, j], int(correct[i, j]), cost, tokens, 1))
    return rows


def write_log(path: Path, rows: list[tuple], columns: str = "query,model,logprob,correct,cost") -> Path:
    every = ["query", "model", "logprob", "correct", "cost", "input_tokens", "output_tokens"]
    chosen = [every.index(name) for name in columns.split(",")]
    lines = [columns, *(",".join(str(row[i]) for i in chosen) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_folder(folder: Path) -> Path:
    """Logs and prices of three models, in several forms."""
    train, test = rows_of(seed=0), rows_of(seed=1)
    write_log(folder / "train.csv", train)
    write_log(folder / "test.csv", test)
    tokens = "query,model,logprob,correct,input_tokens,output_tokens"
    write_log(folder / "train_tokens.csv", train, tokens)
    write_log(folder / "test_tokens.csv", test, tokens)
    write_log(folder / "holes.csv", [row for i, row in enumerate(train) if i % 10])
    prices = {name: {"input": price, "output": price} for name, price in TOKEN_PRICES.items()}
    (folder / "prices.json").write_text(json.dumps(prices))
    return folder


#: The words of the command that runs now.
RUNNING: list[str] = []


def afterwards():
    """Do nothing after a command; `next_steps` replaces this, and runs the next step of each screen."""


def run(*arguments):
    RUNNING[:] = map(str, arguments)
    result = CliRunner().invoke(app, [*RUNNING])
    RUNNING.clear()
    afterwards()
    return result


def succeed(*arguments) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def fail(*arguments) -> str:
    """Return the one line that says what is wrong with the data."""
    result = run(*arguments)
    assert result.exit_code == 1, (result.exit_code, result.stderr, result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]
