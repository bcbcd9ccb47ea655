"""`rcjax retune` replaces a policy by one that does no worse on queries left out, or where one says so."""

import json

import jax
import pytest
from command_line import run, write_log

import rcjax
from rcjax.logs import read_log
from rcjax.tuning.comparison import Gain
from rcjax.tuning.retune import RetuningGain

pytestmark = pytest.mark.usefixtures("own_settings")
NAMES = ("small", "large")
N = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy of 300 queries of train.csv, and fresh logs: few.csv of 95 of the same kind, fewer.csv of 40."""
    path = tmp_path_factory.mktemp("refusals")
    log = rcjax.sample_log(2 * N, seed=8).select(("llama3.2-1b", "llama3.1-70b"))
    logprob, correct, cost = (each.tolist() for each in (log.logprob, log.correct, log.query_cost))
    rows = [
        (i, name, logprob[i][j], int(correct[i][j]), cost[i][j], 0, 0)
        for i in range(2 * N)
        for j, name in enumerate(NAMES)
    ]
    for name, first, last in (("train", 0, N), ("few", N, N + 95), ("fewer", N, N + 40)):
        write_log(path / f"{name}.csv", rows[2 * first : 2 * last])
    with jax.enable_x64(True):
        rcjax.tuning.select_frontier(read_log(path / "train.csv", task="choice")).frontier.policy(
            error_cost=0.001
        ).save(path / "policy.json")
    return path


@pytest.fixture
def worse(monkeypatch):
    """Policies tuned again are worse on queries left out, as in the report: by −0.9 ± 18.9 % of the loss."""
    gain = RetuningGain(loss=0.2, gain=Gain(-0.0018, 0.0378), before=Gain(float("nan"), 0.0), lam=1000.0, n=95)
    monkeypatch.setattr("rcjax.tuning.retune.held_out_gain", lambda *_, **__: gain)


def retune(folder, log, *options):
    return run("retune", folder / "policy.json", folder / log, "--no-bands", *options)


@pytest.mark.thorough
def test_a_worse_policy_is_shown_and_not_written(folder, worse, tmp_path):
    out = tmp_path / "new.json"
    result = retune(folder, "few.csv", "--out", out)
    assert (result.exit_code, out.exists()) == (1, False)
    assert "tuned again" not in result.stdout  # the error says it, once
    assert "Policy written" not in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {out}: not written: it is not shown to be better: on queries left out policies")
    assert "policies tuned again lose what " in line
    assert "--anyway" in line
    document = json.loads(retune(folder, "few.csv", "--out", out, "--json").stdout)
    assert (document["error"]["kind"], "written" in document, out.exists()) == ("data", False, False)
    assert retune(folder, "few.csv").exit_code == 0  # nothing was to be written


def test_what_cannot_be_tested_is_not_written_either(folder, tmp_path):
    out = tmp_path / "new.json"
    result = retune(folder, "fewer.csv", "--out", out)
    assert (result.exit_code, out.exists()) == (1, False)
    assert result.stderr.count("was not tested: fewer than 50 queries have the answers of all models") == 1
    assert "was not tested" not in result.stdout
    assert "--anyway" in result.stderr
    assert retune(folder, "fewer.csv", "--out", out, "--anyway").exit_code == 0


def test_better_and_worse_are_what_chance_does_not_explain():
    before = Gain(float("nan"), 0.0)
    for mean, told in ((0.017, (True, False)), (0.016, (False, False)), (0.0, (False, False)), (-0.017, (False, True))):
        gain = RetuningGain(0.2, Gain(mean, 0.01), before, 1.0, 100)
        assert (gain.better, gain.worse) == told, mean
