"""Without labels: a reference model from tuning over evaluation, check and retuning to the page."""

import json
import re

import pytest
from command_line import run
from reference_logs import write_answers

from rcjax.policy import load_policy

N = 192

pytestmark = pytest.mark.usefixtures("own_settings")

#: Words of errors, that nobody may read where differences are counted; an error of calibration is one.
WRONG = re.compile(r"(?<!calibration )(?<!standard )(?<!squared )\b(wrong|errors?|errs|erred)\b")


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
    assert "at most 12 % difference" in told
    assert "how often it errs cannot be known without labels" in told
    assert WRONG.findall(told.replace("large may be wrong itself", "").replace("it errs cannot", "")) == []
    policy = load_policy(folder / "policy.json")
    assert policy.provenance["same_as"] == {"model": "large", "same": "answer", "counts": "differences"}
    assert policy.expected["error"] <= 0.12
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
    assert "the policy differs from large on" in flat(drifted.stdout)
    again = run("retune", folder / "policy.json", folder / "changed.csv", "--out", folder / "again.json", "--json")
    assert again.exit_code == 0, (again.stderr, again.exception)
    retuned = load_policy(folder / "again.json")
    assert retuned.provenance["same_as"]["model"] == "large"
    assert retuned.expected["error"] <= 0.12


@pytest.mark.thorough
def test_a_promise_is_one_of_the_difference(folder):
    result = run(*tuning(folder / "log.csv", "--confidence", "80%"))
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "guaranteed with 80 % confidence" in flat(result.stdout)
    assert re.search(r"it had \d+\.\d % difference", flat(result.stdout))


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


@pytest.mark.thorough
def test_what_is_printed_after_it_has_its_own_words(folder):
    """The words of a reference do not outlive its command."""
    infeasible = run(*tuning(folder / "log.csv"), "--models", "small,middle")
    assert infeasible.exit_code == 1
    assert "differs from large on" in infeasible.stderr
    labelled = folder / "labelled.csv"
    write_answers(labelled, N, seed=0, labels=N)
    assert "expected error" in run("tune", labelled, "--task", "choice", "--max-error", "40%", "--no-bands").stdout
