"""`rcjax diagnose`: tables, one JSON document, figures in a folder, and one line where it cannot be done."""

import json
import re

import numpy as np
import pytest
from helpers.command_line import NAMES, rows_of, run, succeed, write_log

import rcjax
from rcjax.cli.checks import show_check, show_diagnosis
from rcjax.tuning.diagnostics import FINDING_KINDS

N = 200  # as in test_diagnosis, so that its programmes serve here


pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Paths of two synthetic logs of N queries."""
    folder = tmp_path_factory.mktemp("logs")
    log = rcjax.sample_log(2 * N, seed=0).select(NAMES)
    columns = [np.asarray(each) for each in (log.logprob, log.correct.astype(int), log.query_cost)]
    for name, rows in (("train", range(N)), ("test", range(N, 2 * N))):
        lines = [
            f"{i},{model},{columns[0][i, j]},{columns[1][i, j]},{columns[2][i, j]}"
            for i in rows
            for j, model in enumerate(NAMES.values())
        ]
        (folder / f"{name}.csv").write_text("\n".join(["query,model,logprob,correct,cost", *lines]) + "\n")
    return folder / "train.csv", folder / "test.csv"


def judge(log, *arguments):
    return succeed("diagnose", log, "--task", "choice", *arguments)


@pytest.mark.thorough
def test_diagnose_tests_the_promise_of_the_named_search(logs):
    own = [json.loads(judge(logs[0], "--json", *more)) for more in ([], ["--cascade", "full"])]
    assert (own[0]["models"], own[0]["n_queries"], own[0]["held_out"]) == (list(NAMES.values()), N, False)
    default, full = ({check["name"] for check in each["findings"]} for each in own)
    assert default == full <= {*FINDING_KINDS}
    assert [each["promise"]["search"] for each in own] == ["labels", "full"]
    assert own[0]["promise"]["predicted_error"] != own[1]["promise"]["predicted_error"]
    pair = json.loads(judge(logs[0], "--json", "--cascade", "small,large"))
    assert pair["models"] == ["small", "large"]
    assert pair["promise"]["search"] == [["small", "large"]]


def test_a_diagnosis_shows_the_worst_check_of_each_kind(capsys):
    checks = [
        {
            **FINDING_KINDS[name].finding(subject, figure, f"advice on {subject}", verdict=verdict).to_json(),
            "limits": {"doubtful": 0.03, "bad": 0.06},
        }
        for name, subject, figure, verdict in (
            ("accuracy", "a", 0.01, "fine"),
            ("accuracy", "b", 0.04, "doubtful"),
            ("accuracy", "c", 0.05, "doubtful"),
            ("separation", f"{'a' * 30} & {'b' * 30}", 0.5, "bad"),
        )
    ]
    found = {"models": ["a", "b"], "source": "x/log.csv", "n_queries": 600, "held_out": False}
    found |= {"remarks": ["a remark"], "error_kind": "error", "findings": checks}
    show_diagnosis(found)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "log.csv: 2 models, 600 queries that all answered; judged in five folds"
    assert "doubtful change of own error, c 5.0 points ≤ 3.0 points" in lines  # the worst of its kind
    text = " ".join(lines)
    assert not [one for one in ("fine change", "error, b 4.0 points") if one in text]
    assert text.index("bad advice on a") < text.index("doubtful advice on b; likewise c (5.0 points)")
    show_diagnosis(found, show_all=True)
    text = capsys.readouterr().out
    assert text.count("change of own error") == 3
    assert re.search(r"bad +better is surer,.* 50.0 % +≤ 3.0 %", text)  # a long name is folded, no figure is cut
    assert f"{'a' * 30} " in text  # on a line of its own
    assert "note a remark" in " ".join(text.split())
    assert "of better is surer, that a confidence that tells nothing would do as well: small is good" in " ".join(
        text.split()
    )


# -- check

FACTS = {"source": "a.csv", "policy_models": ["small"], "n_queries": 300, "carried": 300, "tuned_on": 300}


def one(verdict, figure=0.2, p_value=0.3, name="error"):
    about = {"limits": {"doubtful": 0.02, "bad": 0.05}, "unit": "share", "subject": "", "advice": f"see the {name}"}
    about |= {"label": f"change of {name}", "primary": name == "error"}
    return about | {"name": name, "figure": figure, "verdict": verdict, "p_value": p_value}


def shown(capsys, state, *checks, again=False, since=None, **window):
    decision = {"state": state, "headline": f"{state}: it errs", "reasons": ["a reason"], "tune_again": again}
    decision |= {"cause": "", "gain": "", "title": ""}
    decision |= {"advice": "tune again" if again else "keep the policy"}
    window = {"looks": 1, "weeks": 0, "described": "", "since": since} | window
    facts = {"remarks": ["a remark"], "error_kind": "error", "unlabelled": 0, "findings": checks, "window": window}
    show_check(FACTS | facts | {"decision": decision}, "rcjax retune")
    return " ".join(capsys.readouterr().out.split())


def test_the_verdict_comes_first_then_what_explains_it(capsys):
    said = shown(capsys, "worse than expected", one("bad"), one("bad", name="confidences"), one("fine", name="labels"))
    assert said.index("Worse than expected: it errs.") < said.index("a reason") < said.index("changed see the confid")
    assert "DRIFTED change of error" in said
    assert "verdict DRIFTED: beyond its limit, which raises the alarm; changed: beyond its limit; it explains" in said
    assert "see the error" not in said  # the verdict says it
    assert said.endswith("Next: keep the policy")


def test_the_command_to_tune_again_is_shown_only_if_tuning_again_gains(capsys):
    again = shown(capsys, "as expected", one("fine"), again=True)
    assert "Tune again. As expected: it errs." in again
    assert again.endswith("Next: tune again: rcjax retune")
    assert "rcjax retune" not in shown(capsys, "as expected", one("fine"))


def test_the_screen_of_a_check_names_the_weeks_and_the_looks(capsys):
    described = "The last 8 weeks, since 2026-01-05, beside what was tuned on; checked weekly (--looks)."
    said = shown(capsys, "worse than expected", one("bad"), looks=52, described=described, since="2026-02-02")
    assert described in said
    assert "The deviation is largest from the week of 2026-02-02 on." in said


@pytest.mark.thorough
def test_diagnose_report_and_evaluate_give_the_verdict_of_check(tmp_path):
    """`check`, `evaluate`, `diagnose`, `report` and `retune` ask one function: here of a log that is harder."""
    train = write_log(tmp_path / "train.csv", rows_of(seed=0, n=200))
    harder = [(*row[:3], int(row[3] and row[0] % 4 > 0), *row[4:]) for row in rows_of(seed=1, n=200)]
    test, policy = write_log(tmp_path / "test.csv", harder), tmp_path / "policy.json"
    target = ["--budget", "60/M"]
    succeed("tune", train, *target, "--out", policy)
    said = []
    for line in (
        ["check", policy, test],
        ["evaluate", policy, test],
        ["retune", policy, test],
        ["diagnose", train, "--test", test, *target],
        ["report", train, "--test", test, "--out", tmp_path / "page.html", *target],
    ):
        result = run(*line)
        document = json.loads(run(*line, "--json").stdout)
        decision = (document if line[0] == "check" else document["check"])["decision"]
        text = " ".join(result.stdout.split())
        assert decision["headline"][1:] in text, line
        assert ("tune again: rcjax" in text) == decision["tune_again"], line
        assert ("--out next.json" in text) == decision["tune_again"], line
        if line[0] == "diagnose":  # one verdict for a figure: that of the check
            shown_once = {(one["name"], one["subject"]): one for one in document["findings"]}
            assert len(shown_once) == len(document["findings"])
            assert all(shown_once[one["name"], one["subject"]] == one for one in document["check"]["findings"])
        said.append((decision["state"], decision["sentence"], decision["tune_again"], decision["reasons"]))
    assert said[0][0] == "worse than expected"
    assert all(one == said[0] for one in said)
