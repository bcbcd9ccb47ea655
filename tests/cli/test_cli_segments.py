"""`rcjax tune --by` and the commands that read what it writes: tables, one JSON document, lines of error."""

import json

import jax
import numpy as np
import pytest
from command_line import fail, rows_of, run, succeed
from misses import in_turn

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")
OPTIONS = ("--task", "choice", "--no-bands")


def write(path, seed, weak, n=384):
    """A log with a column language; in the segment `weak` all but the largest model err far more often."""
    rng, lines = np.random.default_rng(seed), ["query,model,logprob,correct,cost,language"]
    language = rng.choice(["de", "en"], n)
    for query, model, logprob, correct, cost, *_ in rows_of(seed, n):
        hurt = language[query] == weak and model != "large" and rng.random() < 0.7
        lines.append(f"{query},{model},{logprob},{0 if hurt else correct},{cost},{language[query]}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("segments")
    write(path / "log.csv", 0, "de")
    write(path / "fresh.csv", 1, "de")
    write(path / "moved.csv", 2, "en")
    lines = (path / "fresh.csv").read_text().splitlines()
    with jax.enable_x64(True):
        log = rcjax.read_log(path / "log.csv", task="choice", by="language")
        rcjax.tune_segments(log, budget=60e-6, intervals=False).policy.save(path / "policy.json")
    (path / "untold.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    return path


def test_tune_writes_policies_of_segments(folder, tmp_path):
    out = tmp_path / "policy.json"
    line = "tune", folder / "log.csv", *OPTIONS, "--by", "language", "--budget", "60/M", "--out", out
    document = json.loads(succeed(*line, "--json"))
    policy = rcjax.load_policy(out)
    assert isinstance(policy, rcjax.SegmentedPolicy)
    assert policy.to_json() == document["policy"]
    assert policy.by == document["by"] == "language"
    assert document["policy"]["expected"]["cost"] <= 60e-6 * (1 + 1e-9)
    assert {row["name"] for row in document["segments"]} == {"de", "en"}
    same = rcjax.load_policy(folder / "policy.json")
    assert [policy.segment(name).rules for name in ("de", "en")] == [same.segment(name).rules for name in ("de", "en")]


def test_tables_are_for_people(folder):
    told = succeed(
        "tune", folder / "log.csv", *OPTIONS, "--by", "language", "--budget", "60/M", "--shares", "de=0.2,en=80%"
    )
    assert "of traffic" in told
    assert "20.0 %" in told
    assert "one policy for all" in " ".join(told.split())


def test_evaluate_shows_each_segment(folder):
    told = json.loads(succeed("evaluate", folder / "policy.json", folder / "fresh.csv", "--json"))
    assert told["by"] == "language"
    assert sum(row["n"] for row in told["segments"]) == told["n"] == 384
    assert sum(row["n"] * row["error"] for row in told["segments"]) / 384 == pytest.approx(told["error"])
    assert not told["tuned_on_this_log"]
    assert "language" in succeed("evaluate", folder / "policy.json", folder / "fresh.csv")
    assert json.loads(succeed("evaluate", folder / "policy.json", folder / "log.csv", "--json"))["tuned_on_this_log"]


def test_check_says_which_segment_drifted(folder):
    assert run("check", folder / "policy.json", folder / "fresh.csv").exit_code == 0
    moved = run("check", folder / "policy.json", folder / "moved.csv", "--json")
    assert moved.exit_code == 1
    assert "en" in json.loads(moved.stdout)["drifted_segments"]
    assert "DRIFTED" in run("check", folder / "policy.json", folder / "moved.csv").stdout


def test_retune_spends_the_budget_anew(folder, tmp_path):
    out = tmp_path / "again.json"
    line = "retune", folder / "policy.json", folder / "fresh.csv", "--no-bands", "--out", out
    told = json.loads(succeed(*line, "--json"))
    assert told["gain"] is None
    assert rcjax.load_policy(out).to_json() == told["policy"]
    assert "answered by" in succeed(*line)


@pytest.mark.parametrize("command", ["evaluate", "retune"])
def test_a_log_without_the_column_is_refused(folder, command):
    assert "untold.csv: no column language to tell the segments" in fail(
        command, folder / "policy.json", folder / "untold.csv"
    )
    assert run("check", folder / "policy.json", folder / "untold.csv").exit_code == 2


@in_turn(
    ("options", "message"),
    [
        (("--by", "language"), "needs a target, such as --budget"),
        (("--shares", "de=1", "--budget", "1"), "needs --by"),
        (("--by", "language", "--budget", "1", "--mix"), "does not go with --mix"),
        (("--by", "language", "--budget", "1", "--max-seconds", "p95=2"), "does not go with --max-seconds"),
        (("--by", "language", "--budget", "1", "--second-cost", "0.001"), "does not go with --second-cost"),
        (("--by", "language", "--budget", "1", "--cascade", "all"), "does not go with --cascade"),
        (("--by", "language", "--budget", "1", "--abstain-price", "0.3"), "does not go with --abstain-price"),
        (("--by", "language", "--budget", "1", "--shares", "de"), "give pairs of two names"),
        (("--by", "language", "--budget", "1", "--shares", "de=x,en=1"), "is not a share"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(folder, options, message):
    result = run("tune", folder / "log.csv", *OPTIONS, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


@in_turn(
    ("options", "message"),
    [
        (
            ("--by", "langage"),
            "log.csv: no column langage to tell the segments (did you mean 'language' for 'langage'?)",
        ),
        (("--by", "model"), "by model: segments are told by a column of their own"),
        (("--by", "language", "--shares", "de=1"), "shares lack en: give one of each segment of the log"),
        (("--by", "language", "--shares", "de=0.5,en=0.4"), "shares sum to 0.9"),
    ],
)
def test_what_is_wrong_with_the_log_is_one_line(folder, tmp_path, options, message):
    assert message in fail(
        "tune", folder / "log.csv", *OPTIONS, "--budget", "60/M", *options, "--out", tmp_path / "new.json"
    )
    assert not (tmp_path / "new.json").exists()


@pytest.mark.thorough
def test_a_budget_out_of_reach_is_one_line(folder):
    assert "the cheapest costs" in fail("tune", folder / "log.csv", *OPTIONS, "--by", "language", "--budget", "0.001/M")
