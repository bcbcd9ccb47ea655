"""The command line reads a call log that rolled over with its parts, and never writes into one."""

import json

import pytest
from call_samples import DAY, calls_of_sample, parts_in_one, write
from command_line import run

from rcjax._base.log_parts import parts_of
from rcjax.serving.call_log import Roll


@pytest.fixture
def rolled(tmp_path):
    """(a service's log in parts, labels) of 120 queries to two models."""
    labels = tmp_path / "labels.csv"
    labels.write_text("query,answer\n" + "".join(f"{i},yes\n" for i in range(120)))
    return write(tmp_path / "calls.jsonl", *calls_of_sample(120), roll=Roll(size=30_000)), labels


def test_commands_read_the_parts_and_say_so(rolled, tmp_path):
    path, labels = rolled
    count = len(parts_of(path))
    assert count > 1
    told = f"warning: calls.jsonl: read with {count} parts that rolled off it, calls.{DAY}.0001.jsonl to"
    policy, again = tmp_path / "policy.json", tmp_path / "again.json"
    options = ["--labels", labels, "--no-bands"]
    tune = [*options, "--task", "choice", "--error-cost", "0.001", "--cascade", "all"]
    result = run("tune", path, *tune, "--out", policy)
    assert result.exit_code == 0, result.stderr
    assert told in result.stderr
    assert run("tune", parts_in_one(path), *tune, "--out", again).exit_code == 0
    documents = [json.loads(file.read_text()) for file in (policy, again)]
    for document in documents:
        del document["provenance"]["date"]
    assert documents[0] == documents[1]
    result = run("evaluate", policy, path, "--labels", labels, "--json")
    assert told in result.stderr
    assert json.loads(result.stdout)["n"] == 120
    result = run("retune", policy, path, *options)
    assert result.exit_code == 0, result.stderr
    assert told in result.stderr
    assert result.stderr.count(told) == 1
    result = run("check", policy, path, "--labels", labels)
    assert result.exit_code == 2
    assert "the policy was tuned on this very log" in result.stderr


def test_an_output_may_not_be_a_part(rolled):
    path, labels = rolled
    part = parts_of(path)[0]
    before = part.read_bytes()
    result = run("tune", path, "--labels", labels, "--error-cost", "0.001", "--out", part)
    assert result.exit_code == 2
    assert "must not be the file of LOG" in " ".join(result.stderr.replace("│", " ").split())
    assert part.read_bytes() == before
