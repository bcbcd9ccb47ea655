"""`rcjax check` says first what is known: what has drifted, that nothing has, or that queries are too few to tell."""

import pytest
from command_line import rows_of, run, succeed, write_log

from rcjax.cli.checks import show_check

pytestmark = pytest.mark.usefixtures("own_settings")

FACTS = {
    "source": "a.csv",
    "policy_models": ["small"],
    "reference": 300,
    "tuned_on": 300,
    "alarm": 0.05,
    "remarks": [],
    "counted": "error",
}


VERDICTS = {"f": "fine", "d": "doubtful", "b": "bad"}


def one(verdict, figure=0.2, p_value=0.3, name="error"):
    about = {"limits": [0.02, 0.05], "unit": "share", "subject": "", "advice": "see"}
    return about | {"name": name, "figure": figure, "verdict": verdict, "p_value": p_value}


@pytest.mark.parametrize(
    ("verdicts", "unlabelled", "first", "last"),
    [
        ("f f f", 0, "fine: none of 3 checks has drifted", "keep the policy"),
        ("d d f", 0, "too few queries to tell: 2 of 3 checks are unclear (change of error)", "label more q"),
        ("d f", 200, "too few labels to tell: 1 of 2 checks is unclear (change of error)", "label the 200 logged qu"),
        ("d f f f f", 0, "none of 5 checks has drifted, but 1 is unclear (change of error)", "label more queries"),
        ("b d f", 0, "1 of 3 checks: DRIFTED; 1 is unclear", "tune again"),
    ],
)
def test_what_is_known_comes_first(capsys, verdicts, unlabelled, first, last):
    show_check(FACTS | {"n": 300, "unlabelled": unlabelled, "checks": [one(VERDICTS[v]) for v in verdicts.split()]})
    said = " ".join(capsys.readouterr().out.split())
    assert f"small {first} " in said
    assert f"Next: {last}" in said


@pytest.mark.thorough
def test_a_log_with_few_labels_asks_for_them(tmp_path):
    write_log(tmp_path / "train.csv", rows_of(seed=0))
    succeed("tune", tmp_path / "train.csv", "--budget", "60/M", "--no-bands", "--out", tmp_path / "policy.json")
    rows = [(*row[:3], row[3] if row[0] < 12 else "", *row[4:]) for row in rows_of(seed=1, n=200)]
    result = run("check", tmp_path / "policy.json", write_log(tmp_path / "few.csv", rows), "--no-retuning")
    said = " ".join(result.stdout.split())
    assert "label the 188 logged queries without a label" in said
    assert "that may be chance: label more queries and check again" in said
