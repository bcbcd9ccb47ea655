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
def test_variants_are_rows_of_their_own(path, tmp_path):
    policy = tmp_path / "policy.json"
    tuned = json.loads(succeed("tune", path, "--budget", "9", "--no-bands", "--out", policy, "--json"))
    assert tuned["models"] == ["small", "small ×2", "small ×3", "medium", "large"]
    assert [row["model"] for row in tuned["model_summary"]] == tuned["models"]
    assert any("sample" in remark for remark in tuned["remarks"])
    told = json.loads(succeed("evaluate", policy, path, "--json"))
    assert told["predicted"] is not None
    sampled_frame(seed=1).write_csv(fresh := tmp_path / "fresh.csv")
    checked = json.loads(run("check", policy, fresh, "--no-retuning", "--json").stdout)
    assert (checked["n"], checked["policy_models"]) == (150, list(rcjax.load_policy(policy).models))
    again = json.loads(succeed("retune", policy, fresh, "--no-bands", "--json"))
    assert again["policy"]["provenance"]["tuning"]["models"] == tuned["models"]


def test_votes_are_chosen(path):
    tuned = json.loads(succeed("tune", path, "--votes", "1", "--no-bands", "--json"))
    assert tuned["models"] == ["small", "medium", "large"]
    shown = succeed("tune", path, "--votes", "3,1", "--no-bands")
    assert "small ×3" in shown
    assert "small ×2" not in shown


@pytest.mark.parametrize(
    ("votes", "status", "message"),
    [
        ("0", 2, "'0': give whole numbers from 1 to 1000"),
        ("many", 2, "'many': give whole numbers"),
        ("7", 1, "votes of 7: no model has so many answers to a query, but 3 at most"),
    ],
)
def test_votes_that_there_are_not(path, votes, status, message):
    outcome = run("tune", path, "--votes", votes)
    assert outcome.exit_code == status
    assert message in " ".join(outcome.stderr.replace("│", " ").split())
