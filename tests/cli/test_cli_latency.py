"""The command line where the log tells seconds: figures beside error and cost, a price, a limit."""

import json

import numpy as np
import pytest
from command_line import run, succeed
from misses import in_turn
from timed_logs import timed_table, waited

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")
FIGURES = ("seconds", "seconds_p50", "seconds_p95", "seconds_p99")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    timed_table(300, seed=1).write_csv(folder / "train.csv")
    timed_table(250, seed=2, unknown=0.02).write_csv(folder / "test.csv")
    timed_table(250, seed=2, slower=3.0).write_csv(folder / "slow.csv")
    return folder


@in_turn(
    ("options", "message"),
    [
        (["--max-seconds", "soon"], "'soon': give a number of seconds, such as 2, or p95=4"),
        (["--max-seconds", "p90=4"], "give 2 (on average), or p50=…, p95=4 or p99=…"),
        (["--max-seconds", "0"], "must be a number above 0, such as 2, or p95=4"),
        (["--max-seconds", "2", "--confidence", "90%", "--max-error", "0.3"], "of a mean cannot be guaranteed"),
        (["--max-seconds", "p95=2", "--mix", "--max-error", "0.3"], "takes no --max-seconds"),
        (["--second-cost", "soon"], "is no sum of money"),
        (["--second-cost", "-1"], "is not a sum of money of 0 or more"),
    ],
)
def test_usage(options, message):
    result = run("tune", "log.csv", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "option", [pytest.param(["--max-seconds", "p95=2"], marks=pytest.mark.thorough), ["--second-cost", "0.001"]]
)
def test_a_log_without_seconds_is_refused_in_one_line(folder, tmp_path, option):
    timed_table(60).drop("seconds").write_csv(tmp_path / "bare.csv")
    result = run("tune", tmp_path / "bare.csv", "--no-bands", "--error-cost", "0.01", *option)
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert "no column seconds (or latency_ms)" in line


def test_the_loop_with_a_limit(folder, tmp_path):
    policy, frontier = tmp_path / "policy.json", tmp_path / "frontier.json"
    asked = ["tune", folder / "train.csv", "--no-bands", "--max-seconds", "p95=2.5", "--error-cost", "0.01"]
    document = json.loads(succeed(*asked, "--out", policy, "--frontier", frontier, "--json"))
    expected = document["policy"]["expected"]
    own = rcjax.load_policy(policy)
    waits = np.array(waited(own, rcjax.read_log(folder / "train.csv").select(own.models)))
    assert expected["seconds"] == pytest.approx(waits.mean())
    assert (waits > 2.5).mean() <= 0.05
    assert all(set(FIGURES) <= set(point) and point["seconds_p95"] <= 2.5 for point in document["frontier"])
    assert any("2.5 seconds for 95 % of the queries" in remark for remark in document["remarks"])

    replayed = json.loads(succeed("evaluate", policy, folder / "test.csv", "--json"))
    assert {name: replayed["predicted"][name] for name in FIGURES} == {name: expected[name] for name in FIGURES}
    waits = np.array(waited(own, rcjax.read_log(folder / "test.csv").select(own.models)))
    assert replayed["seconds"] == pytest.approx(np.nanmean(waits))
    assert replayed["seconds_unknown"] == int(np.isnan(waits).sum()) > 0
    low, high = replayed["seconds_p95_interval"]
    assert low <= replayed["seconds_p95"] <= high
    whole = json.loads(succeed("evaluate", frontier, folder / "test.csv", "--json"))
    assert len(whole["seconds_p95"]) == len(document["frontier"]) == len(whole["predicted"]["seconds_p95"])

    shown = " ".join(succeed("evaluate", policy, folder / "test.csv").split())
    assert "seconds, mean" in shown
    assert f"leave out {replayed['seconds_unknown']} quer" in shown
    checked = run("check", policy, folder / "slow.csv", "--no-retuning", "--json")
    assert checked.exit_code == 1
    drifted = {check["name"] for check in json.loads(checked.stdout)["checks"] if check["verdict"] == "bad"}
    assert {"seconds", "seconds limit"} <= drifted


def test_people_are_told_of_waiting_and_of_money(folder, tmp_path):
    policy = tmp_path / "policy.json"
    asked = ["tune", folder / "train.csv", "--no-bands", "--second-cost", "0.5/k", "--error-cost", "0.01"]
    shown = " ".join(succeed(*asked, "--out", policy).split())
    assert "Costs count $0.0005 for each second of waiting, beside the money." in shown
    assert ", with waiting; money alone $" in shown
    assert " on average, " in shown
    replayed = json.loads(succeed("evaluate", policy, folder / "slow.csv", "--json"))
    assert replayed["cost"] == pytest.approx(replayed["money"] + 0.0005 * replayed["seconds"], rel=0.1)
    assert "Both count what waiting is worth" in succeed("evaluate", policy, folder / "slow.csv")


def test_what_is_out_of_reach_names_the_best_figure(folder):
    result = run("tune", folder / "train.csv", "--no-bands", "--max-seconds", "p95=0.1", "--max-error", "0.3", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["error"]["kind"] == "infeasible"
    assert (
        "no policy takes at most 0.1 seconds for 95 % of the queries; the fastest, small"
        in document["error"]["message"]
    )
    assert document["frontier"]


@pytest.mark.thorough
def test_a_log_that_tells_no_seconds_gives_the_document_of_before(folder, tmp_path):
    timed_table(120, seed=1).drop("seconds").write_csv(tmp_path / "bare.csv")
    text = succeed("tune", tmp_path / "bare.csv", "--no-bands", "--error-cost", "0.01", "--json")
    assert "second" not in text
    assert '"money"' not in text
