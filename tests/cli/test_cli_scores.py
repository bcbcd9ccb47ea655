"""Scores from the command line: tune, evaluate, check and retune, in the words of what is lost."""

import json
import re

import pytest
from command_line import run
from scored_logs import write_scores

from rcjax.policy import load_policy

N = 192

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logs of scores from 0 to 10, and a policy that loses 40 % of them at most."""
    path = tmp_path_factory.mktemp("scores")
    write_scores(path / "log.csv", N, seed=0, most=10)
    write_scores(path / "fresh.csv", N, seed=1, most=10)
    write_scores(path / "changed.csv", N, seed=2, most=10, worse=True)
    result = run(*tuning(path / "log.csv", "--score-max", "10"), "--out", path / "policy.json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    (path / "tuned.txt").write_text(result.stdout)
    return path


def tuning(log, *more):
    return "tune", log, "--max-error", "40%", "--no-bands", *more


def flat(text: str) -> str:
    return " ".join(text.split())


def test_tune_counts_what_is_lost_and_says_so(folder):
    told = flat((folder / "tuned.txt").read_text())
    assert "Counted is the score that is lost, as a share of the full score, 10" in told
    policy = load_policy(folder / "policy.json")
    assert policy.provenance["scores"] == {"most": 10.0}
    assert policy.expected["error"] <= 0.4 * (1 + 1e-9)


@pytest.mark.thorough
def test_evaluate_check_and_retune_know_the_scale_by_the_policy(folder):
    evaluated = run("evaluate", folder / "policy.json", folder / "fresh.csv", "--json")
    document = json.loads(evaluated.stdout)
    low, high = document["error_interval"]
    assert high - low == pytest.approx(2 * 1.645 * document["error_se"], rel=0.05)  # not that of right and wrong
    fine = run("check", folder / "policy.json", folder / "fresh.csv", "--no-retuning")
    assert fine.exit_code == 0, (fine.stdout, fine.stderr, fine.exception)
    drifted = run("check", folder / "policy.json", folder / "changed.csv", "--no-retuning")
    assert drifted.exit_code == 1, (drifted.stderr, drifted.exception)
    again = run("retune", folder / "policy.json", folder / "fresh.csv", "--anyway", "--out", folder / "again.json")
    assert again.exit_code == 0, (again.stderr, again.exception)
    assert load_policy(folder / "again.json").provenance["scores"] == {"most": 10.0}


def test_what_is_no_score_is_refused_in_a_line(folder):
    cases = {
        ("tune", folder / "log.csv"): "> 1: give true, false, 1, 0, or a score between, and the full score",
        ("check", folder / "policy.json", folder / "fresh.csv", "--score-max", "5"): "> 5: give the score, from 0 to 5",
        ("tune", folder / "log.csv", "--score-max", "0"): "--score-max",
    }
    shares = write_scores(folder / "shares.csv", 96, seed=3)
    label = ("label", shares, "--n", "10", "--out", folder / "to_label.csv")
    cases[label] = "its labels are scores, and labels by hand are 1 or 0"
    misses = {}
    for line, words in cases.items():
        result = run(*line)
        told = flat(re.sub("[│╭╮╰╯─]", "", result.stderr))
        if result.exit_code not in (1, 2) or words not in told or "Traceback" in told:
            misses[line] = told
    assert misses == {}
