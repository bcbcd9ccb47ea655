"""Logs with several samples of a model, on the command line."""

import json

import pytest
from command_line import run, succeed
from sampled_logs import sampled_frame

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("votes") / "log.csv"
    sampled_frame().write_csv(file)
    return file


@pytest.mark.thorough
def test_a_model_with_several_answers_is_one_model(path, tmp_path):
    policy = tmp_path / "policy.json"
    tuned = json.loads(succeed("tune", path, "--budget", "9", "--no-bands", "--out", policy, "--json"))
    assert tuned["models"] == ["small", "medium", "large"]
    assert rcjax.load_policy(policy).provenance["asked"]["small"]["samples"] == 3
    sampled_frame(seed=1).write_csv(fresh := tmp_path / "fresh.csv")
    checked = json.loads(run("check", policy, fresh, "--no-retuning", "--json").stdout)
    assert (checked["n"], checked["policy_models"]) == (150, list(rcjax.load_policy(policy).models))
    again = json.loads(succeed("retune", policy, fresh, "--no-bands", "--json"))
    assert again["policy"]["provenance"]["tuning"]["models"] == tuned["models"]
