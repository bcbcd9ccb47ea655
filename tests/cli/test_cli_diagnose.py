"""`rcjax diagnose`: tables, one JSON document, figures in a folder, and one line where it cannot be done."""

import dataclasses
import json
import re

import numpy as np
import pytest
from command_line import NAMES, rows_of, run, succeed, write_log

import rcjax
from rcjax.cli.checks import show_check, show_diagnosis
from rcjax.diagnostics import KINDS

#: Those of test_diagnosis, so that its programmes serve here.
N, REPLICATES = 200, 50


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
    return succeed("diagnose", log, "--task", "choice", "--replicates", REPLICATES, *arguments)


@pytest.mark.thorough
def test_another_search_is_held_to_its_own_promise(logs):
    own = [json.loads(judge(logs[0], "--json", *more)) for more in ([], ["--cascade", "full"])]
    assert (own[0]["models"], own[0]["n"], own[0]["held_out"]) == (list(NAMES.values()), N, False)
    fit = {"marginal", "copula", "Markov property"}  # on which the default rests not
    assert [{check["name"] for check in each["checks"]} for each in own] == [{*KINDS} - fit, {*KINDS}]
    assert [each["promise"]["search"] for each in own] == ["selected", "full"]
    assert own[0]["promise"]["predicted_error"] != own[1]["promise"]["predicted_error"]
    pair = json.loads(judge(logs[0], "--json", "--cascade", "small,large"))
    assert pair["models"] == ["small", "large"]
    assert pair["promise"]["search"] == [["small", "large"]]


def test_what_is_shown_of_a_diagnosis(capsys):
    checks = [
        {
            **dataclasses.asdict(KINDS[name].judged(subject, figure, f"advice on {subject}", verdict=verdict)),
            "limits": [0.03, 0.06],
        }
        for name, subject, figure, verdict in (
            ("accuracy", "a", 0.01, "fine"),
            ("accuracy", "b", 0.04, "doubtful"),
            ("accuracy", "c", 0.05, "doubtful"),
            ("copula", f"{'a' * 30} & {'b' * 30}", 0.5, "bad"),
        )
    ]
    found = {"models": ["a", "b"], "source": "x/log.csv", "n": 600, "held_out": False}
    found |= {"remarks": ["a remark"], "counted": "error", "checks": checks}
    show_diagnosis(found)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "log.csv: 2 models, 600 queries that all answered; judged in five folds"
    assert "doubtful change of own error c 5.0 % ≤ 3.0 %" in lines  # the worst of its kind
    text = " ".join(lines)
    assert not [one for one in ("fine change", "error b 4.0 %") if one in text]
    assert text.index("bad advice on a") < text.index("doubtful advice on b; likewise c (5.0 %)")
    show_diagnosis(found, every=True)
    text = capsys.readouterr().out
    assert text.count("change of own error") == 3 + 1
    assert re.search(r"bad +fit of two models .* 50.0 % +≤ 3.0 %", text)  # a long name is folded, no figure is cut
    assert "note a remark" in " ".join(text.split())


# -- check

FACTS = {"source": "a.csv", "policy_models": ["small"], "n": 300, "reference": 300, "tuned_on": 300}


VERDICTS = {"f": "fine", "d": "doubtful", "b": "bad"}


def one(verdict, figure=0.2, p_value=0.3, name="error"):
    about = {"limits": [0.02, 0.05], "unit": "share", "subject": "", "advice": "see"}
    about |= {"label": f"change of {name}", "meaning": ""}
    return about | {"name": name, "figure": figure, "verdict": verdict, "p_value": p_value}


@pytest.mark.parametrize(
    ("verdicts", "unlabelled", "first", "last"),
    [
        ("f f f", 0, "fine: none of 3 checks has drifted", "keep the policy"),
        ("d d f", 0, "too few queries to tell, for 2 of 3 checks (change of error)", "log and label"),
        ("d f", 200, "too few labels to tell, for 1 of 2 checks (change of error)", "label the 200 logged qu"),
        (
            "d f f f f",
            0,
            "none of 5 checks has drifted; for 1 the queries are too few (change of error)",
            "log and label more queries that all models answer",
        ),
        ("b d f", 0, "1 of 3 checks: DRIFTED; for 1 the queries are too few", "see what has changed; if it is to"),
    ],
)
def test_what_is_known_comes_first(capsys, verdicts, unlabelled, first, last):
    show_check(
        FACTS
        | {
            "remarks": [],
            "counted": "error",
            "unlabelled": unlabelled,
            "checks": [one(VERDICTS[v]) for v in verdicts.split()],
        }
    )
    said = " ".join(capsys.readouterr().out.split())
    assert f"small {first} " in said
    assert f"Next: {last}" in said


@pytest.mark.parametrize(("gain", "again"), [({"worth_it": True}, True), ({"worth_it": False}, False), (None, True)])
def test_tuning_again_is_advised_only_where_it_is_taken_up(capsys, gain, again):
    facts = FACTS | {"remarks": [], "counted": "error", "checks": [one("bad")], "retuning": gain}
    show_check(facts, "rcjax retune")
    said = " ".join(capsys.readouterr().out.split())
    assert ("rcjax retune" in said) == again == ("keep the policy" not in said)
    show_check(facts | {"checks": [one("bad", name="labels")]}, "rcjax retune")
    assert "rcjax retune" not in capsys.readouterr().out


@pytest.mark.thorough
def test_a_log_with_few_labels_asks_for_them(tmp_path):
    write_log(tmp_path / "train.csv", rows_of(seed=0))
    succeed("tune", tmp_path / "train.csv", "--budget", "60/M", "--no-bands", "--out", tmp_path / "policy.json")
    rows = [(*row[:3], row[3] if row[0] < 12 else "", *row[4:]) for row in rows_of(seed=1, n=200)]
    result = run("check", tmp_path / "policy.json", write_log(tmp_path / "few.csv", rows), "--no-retuning")
    said = " ".join(result.stdout.split())
    assert "label the 188 logged queries without a label" in said
    assert "that may be chance: label more queries and check again" in said
