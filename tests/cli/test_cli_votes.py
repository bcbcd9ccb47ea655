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


@pytest.mark.parametrize("command", ["tune", "diagnose", "report"])
def test_the_option_that_is_gone_is_told(path, command):
    outcome = run(command, path, "--votes", "1,3")
    assert outcome.exit_code == 2
    message = " ".join(outcome.stderr.replace("│", " ").split())
    assert "votes as models beside their own (small ×3) are gone" in message
    assert "leave it out" in message


def test_a_model_that_is_gone_is_told(path):
    outcome = run("tune", path, "--models", "small ×3,large")
    assert outcome.exit_code == 1
    assert "(the signal votes): name small" in " ".join(outcome.stderr.split())
