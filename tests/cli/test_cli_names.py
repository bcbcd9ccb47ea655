"""Names of models, queries and files with control characters: nothing that is printed holds one."""

import csv
import json

import jax
import pytest
from helpers.command_line import run

import rcjax
from rcjax.logs import read_log

SMALL, MIDDLE, LARGE = "sm\x1b[31mall\x07", "mid\u2066dle", "lar\u202ege\x9b2J"
#: As many models and queries as in test_diagnosis, so that its programmes serve here.
N = 200
pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("n\x1b[2James")
    log = rcjax.sample_log(2 * N, seed=4).select(("llama3.2-1b", "llama3.1-8b", "llama3.1-70b"))
    logprob, correct, cost = (each.tolist() for each in (log.logprob, log.correct, log.query_cost))
    for name, queries in (("train", range(N)), ("fresh", range(N, 2 * N))):
        with open(path / f"{name}\x1b.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["query", "model", "logprob", "correct", "cost"])
            for i in queries:
                for j, model in enumerate((SMALL, MIDDLE, LARGE)):
                    rows.writerow([f"q\x1b[1m{i}\u2028", model, logprob[i][j], int(correct[i][j]), cost[i][j]])
    with jax.enable_x64(True):
        frontier = rcjax.solve_frontier(
            rcjax.fit(read_log(path / "train\x1b.csv", task="choice")), lam=[1000.0], cascades="full"
        )
        frontier.policy(lam=1000.0).save(path / "policy\x1b.json")
    (path / "models\x1b.toml").write_text(
        '["hu\\u001b[31mge"]\ninput = 1\noutput = 2\nbase_url = "http://localhost:9/v1"'
    )
    return path


TUNE = ["tune", "train", "--task", "choice", "--no-bands", "--error-cost", "0.001"]
COMMANDS = {
    "tune": [*TUNE, "--out", "new"],
    "tune one cascade": [*TUNE, "--cascade", "full"],
    "tune rules": [*TUNE, "--cascade", "adaptive"],
    "label": ["label", "train", "--task", "choice", "--n", "12", "--labels", "few", "--out", "drawn"],
    "evaluate": ["evaluate", "policy", "fresh"],
    "diagnose": ["diagnose", "train", "--task", "choice", "--all"],
    "check": ["check", "policy", "fresh", "--no-retuning"],
    "retune": ["retune", "policy", "fresh", "--no-bands", "--out", "new"],
    "a missing file": ["tune", "absent"],
    "a missing model to serve": ["serve", "policy", "--models", "models", "--port", "0"],
    "a missing model": ["tune", "train", "--models", f"{SMALL},\x1bhuge"],
    "a bad row": ["tune", "broken"],
    "rows left out": ["tune", "holes", "--task", "choice", "--no-bands"],
    "an output that is an input": ["tune", "train", "--error-cost", "1", "--out", "train"],
}


#: These take longest: much is compiled for them alone.
DEAR = {"tune one cascade", "diagnose"}


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.thorough if name in DEAR else ()) for name in COMMANDS]
)
def test_nothing_printed_holds_a_control_character(command, folder):
    text = (folder / "train\x1b.csv").read_text()
    (folder / "broken\x1b.csv").write_text(text + f"q\x1b[1m0\u2028,{SMALL},0.5,1,1\n")
    lines = text.split("\n")
    (folder / "few\x1b.csv").write_text("\n".join(lines[:61]))
    (folder / "holes\x1b.csv").write_text("\n".join(line for i, line in enumerate(lines) if i != 4))
    files = {name: f"{name}\x1b.csv" for name in ("train", "fresh", "absent", "broken", "holes", "few", "drawn")}
    files |= {name: f"{name}\x1b.json" for name in ("policy", "new")} | {"models": "models\x1b.toml"}
    line = [folder / files[word] if word in files else word for word in COMMANDS[command]]
    plain = run(*line)
    (folder / "drawn\x1b.csv").unlink(missing_ok=True)  # it is never overwritten
    as_json = run(*line, "--json")
    assert plain.exit_code == as_json.exit_code
    assert plain.exit_code == {"a missing": 1, "a bad row": 1, "an output": 2}.get(command[:9], plain.exit_code)
    for text in (plain.stdout, plain.stderr, as_json.stdout, as_json.stderr):
        assert text.replace("\n", "").isprintable()
    assert r"\x1b" in plain.stdout + plain.stderr
    assert as_json.stdout.isascii()
    document = json.loads(as_json.stdout)
    if "model_summary" in document:
        assert document["models"] == [SMALL, MIDDLE, LARGE]
