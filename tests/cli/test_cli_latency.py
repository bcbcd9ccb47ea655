"""The command line where the log tells seconds: figures beside error and cost, a price, a limit."""

import json

import numpy as np
import pytest
from command_line import run, succeed
from misses import in_turn
from timed_logs import timed_table, waited

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")
FIGURES = ("seconds", "seconds_p95")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    timed_table(300, seed=1).write_csv(folder / "train.csv")
    timed_table(250, seed=2, unknown=0.02).write_csv(folder / "test.csv")
    return folder


@in_turn(
    ("options", "message"),
    [
        (["--max-seconds", "soon"], "'soon': give a number of seconds above 0, such as 2 (on average), or p95=4"),
        (["--max-seconds", "p90=4"], "give a number of seconds above 0"),
        (["--max-seconds", "0"], "give a number of seconds above 0"),
        (
            ["--max-seconds", "2", "--confidence", "90%", "--max-error", "0.3"],
            "leave --confidence out",
        ),
        (["--second-cost", "soon"], "is no sum of money"),
    ],
)
def test_usage(options, message):
    result = run("tune", "log.csv", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_log_without_seconds_is_refused_in_one_line(tmp_path):
    timed_table(60).drop("seconds").write_csv(tmp_path / "bare.csv")
    result = run("tune", tmp_path / "bare.csv", "--no-bands", "--error-cost", "0.01", "--second-cost", "0.001")
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert "no column seconds (or latency_ms)" in line


def test_the_loop_with_a_limit_and_a_price(folder, tmp_path):
    policy, frontier = tmp_path / "policy.json", tmp_path / "frontier.json"
    asked = ["tune", folder / "train.csv", "--no-bands", "--error-cost", "0.01", "--second-cost", "0.5/k"]
    asked += ["--max-seconds", "p95=2.5", "--out", policy, "--frontier", frontier]
    document = json.loads(succeed(*asked, "--json"))
    own, expected = rcjax.load_policy(policy), document["policy"]["expected"]
    waits = np.array(waited(own, rcjax.read_log(folder / "train.csv").select(own.models)))
    assert expected["seconds"] == pytest.approx(waits.mean())
    assert all(set(FIGURES) <= set(point) and point["seconds_p95"] <= 2.5 for point in document["frontier"])
    shown = " ".join(succeed(*asked).split())
    assert "Costs count $0.0005 for each second of waiting, beside the money." in shown
    assert " on average, " in shown

    replayed = json.loads(succeed("evaluate", policy, folder / "train.csv", "--json"))
    assert {name: replayed["predicted"][name] for name in FIGURES} == {name: expected[name] for name in FIGURES}
    assert replayed["seconds"] == pytest.approx(waits.mean())
    whole = json.loads(succeed("evaluate", frontier, folder / "train.csv", "--json"))
    assert len(whole["seconds_p95"]) == len(document["frontier"]) == len(whole["predicted"]["seconds_p95"])
    assert "seconds, mean" in " ".join(succeed("evaluate", policy, folder / "train.csv").split())


def test_seconds_that_are_unknown_are_left_out(folder, tmp_path):
    policy = tmp_path / "policy.json"
    succeed("tune", folder / "train.csv", "--no-bands", "--error-cost", "0.01", "--out", policy)
    own, replayed = rcjax.load_policy(policy), json.loads(succeed("evaluate", policy, folder / "test.csv", "--json"))
    waits = np.array(waited(own, rcjax.read_log(folder / "test.csv").select(own.models)))
    assert replayed["seconds"] == pytest.approx(np.nanmean(waits))
    checked = json.loads(run("check", policy, folder / "test.csv", "--no-retuning", "--json").stdout)
    assert checked["seconds"]["mean"] == pytest.approx(replayed["seconds"])


def test_what_is_out_of_reach_is_said_beside_the_frontier(folder):
    result = run("tune", folder / "train.csv", "--no-bands", "--max-seconds", "p95=0.1", "--max-error", "0.3", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["error"]["kind"] == "infeasible"
    assert "no policy takes at most 0.1 seconds for 95 % of the queries" in document["error"]["message"]
    assert document["frontier"]
