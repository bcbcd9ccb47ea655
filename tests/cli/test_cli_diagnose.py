"""`rcjax diagnose`: tables, one JSON document, figures in a folder, and one line where it cannot be done."""

import json
import os
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import rcjax
from rcjax._base.extras import how_to_install
from rcjax._base.wording import check_name
from rcjax.cli.app import app
from rcjax.cli.check_tables import show_diagnosis
from rcjax.diagnostics import LIMITS

NAMES = {"llama3.2-1b": "small", "llama3.1-8b": "middle", "llama3.1-70b": "large"}
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


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def judge(log, *arguments):
    result = run(log, "--task", "choice", "--replicates", REPLICATES, *arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stderr == ""
    return result.stdout


def fail(*arguments):
    """The one line that says what is wrong."""
    result = run(*arguments)
    assert result.exit_code == 1, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_help():
    result = run("--help")
    assert "Example: rcjax diagnose" in result.stdout
    assert "diagnose" in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["log.csv", "--replicates", "19"], "20"), (["log.csv", "--copula", "gumble"], "unknown copula"), ([], "LOG")],
)
def test_usage_errors_have_status_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture
def no_fit(monkeypatch):
    """What cannot be drawn or written is refused before any work."""
    monkeypatch.setattr(rcjax, "fit", lambda *_, **__: pytest.fail("the work has begun"))


@pytest.mark.usefixtures("no_fit")
def test_a_folder_that_cannot_be_had_is_refused(logs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert "it is a file: give a folder" in fail(logs[0], "--plots", tmp_path / "file")
    assert f"there is no folder {tmp_path / 'absent'}" in fail(logs[0], "--plots", tmp_path / "absent" / "figures")
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode == os.R_OK)
    for folder in (tmp_path / "locked", tmp_path / "locked" / "figures"):
        assert f"the folder {tmp_path / 'locked'} is not writable" in fail(logs[0], "--plots", folder)


@pytest.mark.usefixtures("no_fit")
def test_figures_need_matplotlib(logs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert fail(logs[0], "--plots", tmp_path).endswith(f"--plots needs matplotlib: {how_to_install('plots')}")


@pytest.mark.usefixtures("no_fit")
def test_logs_that_cannot_be_read(logs, tmp_path):
    assert "absent.csv" in fail(tmp_path / "absent.csv")
    lines = logs[1].read_text().splitlines()
    (tmp_path / "two.csv").write_text("\n".join(line for line in lines if ",large," not in line) + "\n")
    assert "large" in fail(logs[0], "--test", tmp_path / "two.csv")


@pytest.mark.thorough
def test_json_is_one_document_and_plots_are_written(logs, tmp_path):
    folder = tmp_path / "figures"
    document = json.loads(judge(logs[0], "--json", "--plots", folder))
    assert document["models"] == list(NAMES.values())
    assert (document["n"], document["held_out"]) == (N, False)
    assert {check["name"] for check in document["checks"]} == set(LIMITS)
    assert sorted(document["plots"]) == sorted(str(path) for path in folder.iterdir())
    assert len(document["plots"]) == 6
    for path in folder.iterdir():
        assert path.suffix == ".png"
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_tables_on_a_log_of_other_queries(logs):
    summary = judge(logs[0], "--test", logs[1])
    assert "test.csv: 3 models, 200 queries that all answered; judged by queries that the fit has not seen" in summary
    assert all(check_name(name) in summary for name in LIMITS)
    every = judge(logs[0], "--test", logs[1], "--all")
    document = json.loads(judge(logs[0], "--test", logs[1], "--json"))
    assert "plots" not in document
    assert document["held_out"]
    rows = [
        line.split()
        for line in every.split("The checks")[1].splitlines()
        if line.split()[:1] and line.split()[0] in VERDICTS
    ]
    table = rows[: len(document["checks"])]
    verdicts = ["fine" if row[0] == "by" else row[0] for row in table]  # "by chance" is fine
    assert verdicts == [check["verdict"] for check in document["checks"]]
    bad = [check for check in document["checks"] if check["verdict"] != "fine"]
    assert bad
    assert ("What to do" in summary) == bool(bad)
    for text in (summary, every):
        words = " ".join(text.split())
        first = {}
        for check in bad:
            first.setdefault((check["verdict"], check["name"]), check["advice"])
        assert all(advice in words for advice in first.values())


@pytest.mark.thorough
def test_another_search_is_held_to_its_own_promise(logs):
    own = [json.loads(judge(logs[0], "--json", *more)) for more in ([], ["--cascade", "full"])]
    assert [each["promise"]["search"] for each in own] == ["selected", "full"]
    assert own[0]["promise"]["predicted_error"] != own[1]["promise"]["predicted_error"]
    assert own[1]["promise"]["predicted_cost"] == pytest.approx(own[1]["chain"]["exact"]["cost"], rel=2e-3)
    pair = json.loads(judge(logs[0], "--json", "--cascade", "small,large"))
    assert pair["models"] == ["small", "large"]
    assert pair["promise"]["search"] == [["small", "large"]]


VERDICTS = ("fine", "doubtful", "bad", "by")


@pytest.fixture
def diagnosis():
    """A diagnosis by hand, its checks as (name, subject, figure, verdict)."""

    def make(*checks, **changes):
        share = {"limits": [0.03, 0.06], "p_value": None, "unit": "share"}
        share |= {"affects": "every policy"}
        names = ("name", "subject", "figure", "verdict")
        rows = [dict(zip(names, check, strict=True)) | share | {"advice": f"advice on {check[1]}"} for check in checks]
        facts = {
            "models": ["a", "b"],
            "source": "x/log.csv",
            "n": 600,
            "tested": 500,
            "held_out": False,
            "remarks": [],
            "counted": "error",
        }
        return facts | {"checks": rows} | changes

    return make


def test_what_is_shown_of_a_diagnosis(diagnosis, capsys, tmp_path):
    found = diagnosis(
        ("accuracy", "a", 0.01, "fine"),
        ("accuracy", "b", 0.04, "doubtful"),
        ("accuracy", "c", 0.05, "doubtful"),
        ("accuracy", "d", None, "doubtful"),
        ("copula", "a & b", 0.5, "bad"),
        remarks=["a remark"],
    )
    show_diagnosis(found, plots=tmp_path)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "log.csv: 2 models, 600 queries that all answered; judged in five folds"
    assert "fit of two models 1 50.0 % ≤ 3.0 %" in lines
    assert any(line.startswith("own error 1 3 ") for line in lines)
    text = " ".join(lines)
    assert "bad every policy: own error of b, c, d; fit of two models of a & b" in text
    assert text.index("What it means for a policy") < text.index("What to do") < text.index("The checks")
    assert text.index("bad advice on a & b") < text.index(
        "doubtful advice on b; likewise c (5.0 %), d (–) (affects every policy)"
    )
    assert "Worth knowing - a remark - p-values of the fit are from 500 of the queries" in text
    assert f"figures:{tmp_path}" in text.replace(" ", "")


def test_nothing_to_do_where_all_is_fine(diagnosis, capsys):
    show_diagnosis(diagnosis(("accuracy", "a", 0.01, "fine"), tested=600))
    out = capsys.readouterr().out
    assert "What to do" not in out
    assert "Worth knowing" not in out
    assert "p-values" not in out
