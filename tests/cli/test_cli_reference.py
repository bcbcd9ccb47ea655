"""Without labels: a reference model from tuning over evaluation, check and retuning to the page."""

import json
import re

import pytest
from command_line import run
from reference_logs import write_answers

from rcjax.policy import load_policy

N = 192

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log without labels, one with some, fresh ones, and a policy of at most 12 % differences."""
    path = tmp_path_factory.mktemp("reference")
    write_answers(path / "log.csv", N, seed=0)
    write_answers(path / "some.csv", N, seed=0, labels=96)
    write_answers(path / "fresh.csv", N, seed=1)
    write_answers(path / "changed.csv", N, seed=2, worse=True)
    result = run(*tuning(path / "log.csv"), "--out", path / "policy.json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    (path / "tuned.txt").write_text(result.stdout)
    return path


def tuning(log, *more):
    return "tune", log, "--task", "choice", "--reference", "large", "--max-difference", "12%", "--no-bands", *more


def flat(text: str) -> str:
    return " ".join(text.split())


def test_tune_counts_what_differs_and_says_so(folder):
    told = flat((folder / "tuned.txt").read_text())
    assert "Counted is whether answers differ from those of large (the same by answer)" in told
    assert "how often it errs cannot be known without labels" in told
    policy = load_policy(folder / "policy.json")
    assert policy.provenance["same_as"] == {"model": "large", "same": "answer", "counts": "differences"}
    assert policy.expected["error"] <= 0.12 * (1 + 1e-9)
    assert policy.provenance["tuning"]["target"] == {"max_error": 0.12}


@pytest.mark.thorough
def test_labels_by_hand_tell_errors_besides(folder):
    result = run(*tuning(folder / "some.csv"))
    assert result.exit_code == 0, (result.stderr, result.exception)
    figures = r"it differs from large in \d+\.\d ± \d\.\d % of the queries, errs on \d+\.\d ± \d\.\d %"
    assert re.search(rf"{figures} \(large itself \d+\.\d ± \d\.\d %\)", flat(result.stdout))
    assert "expected difference" in result.stdout


def test_evaluate_check_and_retune_need_nothing_but_the_policy(folder):
    evaluated = run("evaluate", folder / "policy.json", folder / "fresh.csv", "--json")
    document = json.loads(evaluated.stdout)
    assert document["reference"]["reference"] == "large"
    assert document["reference"]["differs"][0] == pytest.approx(document["error"])
    assert document["reference"]["errs"] is None
    fine = run("check", folder / "policy.json", folder / "fresh.csv", "--no-retuning")
    assert fine.exit_code == 0, (fine.stdout, fine.stderr, fine.exception)
    drifted = run("check", folder / "policy.json", folder / "changed.csv", "--no-retuning")
    assert drifted.exit_code == 1, (drifted.stderr, drifted.exception)
    again = run("retune", folder / "policy.json", folder / "changed.csv", "--out", folder / "again.json", "--json")
    assert again.exit_code == 0, (again.stderr, again.exception)
    retuned = load_policy(folder / "again.json")
    assert retuned.provenance["same_as"]["model"] == "large"
    assert retuned.expected["error"] <= 0.12 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-difference", "3%"], "--max-difference: needs --reference"),
        (["--same", "exact", "--budget", "1"], "--same: needs --reference"),
        (["--reference", "large", "--same", "equal"], "'equal' does not tell whether answers are the same"),
        (
            ["--reference", "large", "--max-difference", "3%", "--max-error", "3%"],
            "give one target, not --max-error and",
        ),
        (["--reference", "lagre", "--max-difference", "3%"], "no model lagre (did you mean 'large'"),
        (["--reference", "large", "--same", "judge:j", "--max-difference", "3%"], "rcjax grade log.csv --reference"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(folder, arguments, words):
    result = run("tune", folder / "log.csv", "--task", "choice", *arguments)
    assert result.exit_code in (1, 2)
    assert words in flat(re.sub("[│╭╮╰╯─]", "", result.stderr)).replace("Invalid value for ", "")
