"""`rcjax check` says first what is known: what has drifted, that nothing has, or that queries are too few to tell."""

import re

import pytest
from command_line import rows_of, run, succeed, write_log
from misses import in_turn

from rcjax.cli.check_tables import show_check

pytestmark = pytest.mark.usefixtures("own_settings")

FACTS = {
    "source": "a.csv",
    "policy_models": ["small"],
    "reference": 300,
    "alarm": 0.05,
    "remarks": [],
    "counted": "error",
}


def one(verdict, figure=0.2, p_value=0.3, name="error"):
    about = {"limits": [0.02, 0.05], "unit": "share", "subject": "", "advice": "see"}
    return about | {"name": name, "figure": figure, "verdict": verdict, "p_value": p_value}


@in_turn(
    "verdicts, n, first, last",
    [
        (["fine"] * 3, 300, "fine: none of 3 checks has drifted", "keep the policy"),
        (
            ["doubtful", "doubtful", "fine"],
            12,
            "too few queries to tell: 2 of 3 checks are unclear (error); about 290 more queries would do",
            "label about 290 more queries, then check these and those together",
        ),
        (
            ["doubtful", "fine", "fine"],
            12,
            "too few queries to tell: 1 of 3 checks is unclear (error); about 290 more queries would do",
            "label about 290 more queries",
        ),
        (
            ["smaller", "fine", "fine"],
            300,
            "none of 3 checks has drifted, but 1 is unclear (error); about 190 more queries would do",
            "label about 190 more queries",
        ),
        (["bad", "doubtful", "fine"], 12, "1 of 3 checks: DRIFTED; 1 is unclear", "tune again"),
    ],
)
def test_what_is_known_comes_first(capsys, verdicts, n, first, last):
    smaller = one("doubtful", figure=0.051)
    show_check(FACTS | {"n": n, "checks": [smaller if v == "smaller" else one(v) for v in verdicts]})
    said = " ".join(capsys.readouterr().out.split())
    assert f"small {first} " in said
    assert f"Next: {last}" in said


@in_turn(
    "checks, n, unlabelled, first, last",
    [
        (
            [one("doubtful"), one("fine")],
            212,
            200,
            "too few labels to tell: 1 of 2 checks is unclear (error); labels of 200 logged queries are missing; "
            "these and about 88 more queries would do",
            "label the 200 logged queries without a label, and log and label about 88 more, then check all together",
        ),
        (
            [one("doubtful"), one("fine")],
            1_012,
            1_000,
            "too few labels to tell: 1 of 2 checks is unclear (error); labels of 1,000 logged queries are missing; "
            "about 290 of these would do",
            "label about 290 of the 1,000 logged queries without a label, then check all together",
        ),
        (
            [one("doubtful", name="cost"), one("fine")],
            12,
            2,
            "too few queries to tell: 1 of 2 checks is unclear (cost); about 290 more queries would do",
            "label about 290 more queries, then check these and those together",
        ),
    ],
)
def test_labels_that_are_missing_come_before_queries(capsys, checks, n, unlabelled, first, last):
    """Where labels are few, those of logged queries cost less than new queries; money needs none."""
    show_check(FACTS | {"n": n, "unlabelled": unlabelled, "checks": checks})
    said = " ".join(capsys.readouterr().out.split())
    assert f"small {first} " in said
    assert f"Next: {last}" in said


def test_a_log_with_few_labels_asks_for_them(tmp_path):
    write_log(tmp_path / "train.csv", rows_of(seed=0))
    succeed("tune", tmp_path / "train.csv", "--budget", "60/M", "--no-bands", "--out", tmp_path / "policy.json")
    rows = [(*row[:3], row[3] if row[0] < 12 else "", *row[4:]) for row in rows_of(seed=1, n=200)]
    result = run("check", tmp_path / "policy.json", write_log(tmp_path / "few.csv", rows), "--no-retuning")
    said = " ".join(result.stdout.split())
    assert "labels of 188 logged queries are missing" in said
    assert "that may be chance: label more queries and check again" in said


def test_a_verdict_that_is_unclear_is_explained_where_there_is_one(capsys):
    for verdict in ("doubtful", "fine"):
        show_check(FACTS | {"n": 300, "checks": [one(verdict)]})
        assert ("unclear so far beyond" in " ".join(capsys.readouterr().out.split())) == (verdict == "doubtful")


def test_figures_that_nothing_explains_ask_for_no_number(capsys):
    checks = [one("doubtful", figure=float("inf"), name="cost"), one("doubtful", figure=None)]
    show_check(FACTS | {"n": 12, "checks": checks})
    assert "2 of 2 checks are unclear (cost, error)\n" in capsys.readouterr().out


@pytest.mark.thorough
def test_twelve_queries_are_too_few_and_as_many_as_it_says_are_enough(tmp_path):
    write_log(tmp_path / "train.csv", rows_of(seed=0))
    succeed("tune", tmp_path / "train.csv", "--budget", "60/M", "--no-bands", "--out", tmp_path / "policy.json")
    few = write_log(tmp_path / "few.csv", rows_of(seed=1, n=12))
    result = run("check", tmp_path / "policy.json", few, "--no-retuning")
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0
    told = re.search(r"too few queries to tell: \d+ of \d+ checks are unclear .*?; about ([\d,]+) more queries", said)
    assert told, said
    assert "fine: none" not in said
    n = 12 + int(told[1].replace(",", ""))
    assert 100 < n < 20_000
    many = write_log(tmp_path / "many.csv", rows_of(seed=1, n=min(n, 3_000)))
    assert "too few queries" not in run("check", tmp_path / "policy.json", many, "--no-retuning").stdout
