"""Policies that compare answers, from the log to the policy tuned again, on the command line."""

import json

import numpy as np
import polars as pl
import pytest
from helpers.agreement_logs import MODELS, make_log
from helpers.command_line import fail, succeed

import rcjax
from rcjax.logs.kept_sample import read_kept_sample

pytestmark = pytest.mark.usefixtures("own_settings")


def write(folder, name, log):
    """A log and what was answered, in two files, and both in one."""
    codes = np.asarray(log.answer)
    columns = {"query": np.repeat(np.arange(log.n_queries), 3), "model": np.tile(MODELS, log.n_queries)}
    said = pl.DataFrame(columns | {"answer": [f"code {code}" for code in codes.ravel()]})
    figures = {"logprob": log.logprob, "correct": np.asarray(log.correct).astype(int), "cost": log.query_cost}
    table = pl.DataFrame(columns | {name: np.asarray(values).ravel() for name, values in figures.items()})
    table.write_csv(folder / f"{name}.csv")
    said.write_csv(folder / f"{name}_answers.csv")
    table.with_columns(said["answer"]).write_csv(folder / f"{name}_both.csv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreement")
    write(folder, "train", make_log(300, 0.0, seed=0))
    write(folder, "fresh", make_log(250, 0.0, seed=7))
    line = ("tune", folder / "train.csv", "--answers", folder / "train_answers.csv", "--budget", "200/M", "--json")
    document = json.loads(succeed(*line, "--out", folder / "policy.json"))
    (folder / "tuned.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def tuned(folder):
    return json.loads((folder / "tuned.json").read_text())


@pytest.mark.thorough
def test_a_policy_that_compares_is_tuned_and_written(folder, tuned):
    agreements = [rung["agreements"] for rung in tuned["policy"]["rungs"] if rung.get("agreements")]
    assert agreements
    assert all(one == {"medium": {"earlier": "small", "model": "large", "compare": "text"}} for one in agreements)
    assert any("agreements" in point for point in tuned["frontier"])
    assert "small and medium, and large where they differ" in tuned["remarks"][0]
    assert rcjax.load_policy(folder / "policy.json").to_json() == tuned["policy"]
    assert tuned["policy"]["expected"]["error_low"] < tuned["policy"]["expected"]["error_high"]
    assert read_kept_sample(tuned["policy"]["provenance"]["kept_sample"], "choice").answer is not None


@pytest.mark.thorough
def test_evaluate_compares_answers_as_the_policy_does(folder):
    line = ("evaluate", folder / "policy.json", folder / "fresh.csv")
    both = [
        json.loads(succeed(*line, "--answers", folder / "fresh_answers.csv", "--json")),
        json.loads(succeed(*line[:2], folder / "fresh_both.csv", "--json")),
    ]
    assert [one["check"].pop("source") for one in both] == ["fresh.csv", "fresh_both.csv"]
    assert both[0] == both[1]
    assert abs(both[0]["error"] - both[0]["predicted"]["error"]) < 0.12
    assert "the policy compares models' answers, and the log has none" in fail(*line)
