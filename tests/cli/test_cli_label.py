"""`rcjax label`: what it draws and writes, how its table comes back, and the terminal that asks."""

import json
import os
import select
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import typer
from command_line import fail, rows_of, run, succeed, write_log

import rcjax
from rcjax.cli import label_terminal
from rcjax.cli.label_terminal import ask_labels
from rcjax.logs import UnlabelledWarning
from rcjax.logs.label_sheet import AnswerKey, LabelSheet, Texts, read_sheet

MAIN = "import sys; sys.argv[0] = 'rcjax'; from rcjax.cli import main; sys.exit(main())"
pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def rows():
    return rows_of(seed=0, n=120)


@pytest.fixture
def log(rows, tmp_path):
    """A log without labels, with texts."""
    path = write_log(tmp_path / "log.csv", rows, "query,model,logprob,cost")
    pl.read_csv(path).with_columns(
        prompt=pl.format("What is {}?", "query"), answer=pl.format("{} says {}", "model", "query")
    ).write_csv(path)
    return path


def fill(path, rows):
    """Label all rows of a table as the whole log has it; how many were without a label."""
    truth = {(str(query), model): right for query, model, _, right, *_ in rows}
    sheet = read_sheet(path)
    missing = [place for place, label in enumerate(sheet.labels) if label is None]
    for place in missing:
        sheet.set_label(place, bool(truth[sheet.rows[place]["query"], sheet.rows[place]["model"]]))
    return len(missing)


def test_a_table_to_fill_in_that_comes_back(log, rows, tmp_path):
    out = tmp_path / "to_label.csv"
    told = succeed("label", log, "--n", 60, "--task", "choice", "--out", out)
    assert "No answer is labelled" in told
    assert "60 answers to label, drawn at random" in told
    assert f"then rcjax tune {log} --labels {out} --task choice" in told
    table = pl.read_csv(out)
    assert table.columns == ["query", "model", "question", "answer", "correct", "label_probability"]
    assert table.height == 60
    assert table["correct"].null_count() == 60
    assert table.select(pl.format("{} says {}", "model", "query"))["model"].to_list() == table["answer"].to_list()
    assert "is not overwritten: give another file, or go on in it with --ask" in fail("label", log, "--out", out)
    assert "none of its 60 rows has a label" in fail("tune", log, "--labels", out)
    assert fill(out, rows) == 60
    with pytest.warns(rcjax.logs.UnlabelledWarning, match="60 of 360 answers are labelled"):
        data = rcjax.read_log(log, labels=out, task="choice")
    assert data.hand is not None
    assert np.isfinite(data.hand.probability).sum() == 60
    document = json.loads(succeed("tune", log, "--labels", out, "--task", "choice", "--no-bands", "--json"))
    assert document["models"] == ["small", "middle", "large"]


def test_a_second_round_holds_the_first(log, rows, tmp_path):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    succeed("label", log, "--n", 30, "--out", first)
    fill(first, rows)
    document = json.loads(succeed("label", log, "--n", 20, "--labels", first, "--out", second, "--json"))
    assert document["drawn"] == 20
    assert sum(model["labelled"] for model in document["models"]) == 30
    assert document["written"] == str(second)
    old, new = pl.read_csv(first), pl.read_csv(second)
    assert new["correct"][:20].null_count() == 20
    assert new["correct"][20:].null_count() == 0
    assert {*new[20:].select("query", "model").rows()} == {*old.select("query", "model").rows()}
    assert not {*new[:20].select("query", "model").rows()} & {*old.select("query", "model").rows()}
    joined = new[20:].join(old, on=["query", "model"])
    assert (joined["label_probability"] >= joined["label_probability_right"] - 1e-9).all()  # two chances
    assert fill(second, rows) == 20
    assert fail("label", log, "--labels", second, "--n", 311, "--out", tmp_path / "third.csv").endswith(
        "only 310 answers without a label: draw no more than that"
    )


def test_what_is_shown_comes_from_files_beside_the_log(rows, tmp_path):
    log = write_log(tmp_path / "log.csv", rows, "query,model,logprob,cost")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        "".join(json.dumps({"query": str(i), "prompt": f"{i}?", "answer": "42"}) + "\n" for i in range(120))
    )
    said = write_log(tmp_path / "said.csv", rows, "query,model")
    pl.read_csv(said).with_columns(answer=pl.format("{}!", "query")).write_csv(said)
    out = tmp_path / "out.csv"
    succeed("label", log, "--n", 9, "--questions", questions, "--answers", said, "--out", out)
    table = pl.read_csv(out)
    assert table.columns[2:5] == ["question", "right_answer", "answer"]
    assert table["question"].to_list() == [f"{query}?" for query in table["query"]]
    assert table["answer"].to_list() == [f"{query}!" for query in table["query"]]
    assert {*table["right_answer"]} == {42}
    bare = tmp_path / "bare.csv"
    succeed("label", log, "--n", 9, "--out", bare)
    assert pl.read_csv(bare).columns == ["query", "model", "correct", "label_probability"]


def test_a_target_changes_nothing_any_more_and_the_command_says_so(log, tmp_path):
    tables = []
    for name, options in (("one.csv", []), ("other.csv", ["--budget", "20/M", "--lam", "3"])):
        result = run("label", log, "--n", 30, "--out", tmp_path / name, *options)
        assert result.exit_code == 0, result.stderr
        assert ("are drawn alike for every target" in result.stderr) is bool(options)
        tables.append((tmp_path / name).read_text())
    assert tables[0] == tables[1]


def test_what_cannot_be(log, rows, tmp_path):
    out = tmp_path / "out.csv"
    whole = write_log(tmp_path / "whole.csv", rows)
    assert "every answer has a label already" in fail("label", whole, "--out", out)
    assert "the labels are the log itself" in fail("label", log, "--labels", log, "--out", out)
    for options, words in [
        (["--ask"], "needs a terminal"),
        (["--ask", "--json"], "does not go with --json"),
        (["--n", "0"], "--n"),
    ]:
        result = run("label", log, "--out", out, *options)
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.replace("│", " ").split())
    result = run("label", log, "--out", tmp_path / "out.parquet")
    assert (result.exit_code, "must end in .csv" in result.stderr) == (2, True)
    assert fail("label", log, "--n", 5, "--out", out).endswith(
        "5 labels for 3 models, which need 3 each at least: draw 9 or more, or leave out models"
    )
    assert not out.exists()


def write_samples(path, queries=60):
    """A log without labels: three answers of `small` to each query, one of `large`; and the right answers."""
    random = np.random.default_rng(0)
    table = []
    for query in range(queries):
        for model, samples, skill in (("small", 3, 0.6), ("large", 1, 0.9)):
            for sample in range(samples):
                answer = "yes" if random.random() < skill else "no"
                row = {"query": query, "model": model, "sample": sample, "answer": answer}
                table.append(row | {"confidence": random.uniform(0.3, 0.9), "cost": 1.0 if model == "small" else 9.0})
    pl.DataFrame(table).write_csv(path)
    return path


def test_of_several_samples_the_first_that_says_what_most_say_is_labelled(tmp_path):
    log, out = write_samples(tmp_path / "log.csv"), tmp_path / "to_label.csv"
    succeed("label", log, "--n", 80, "--out", out)
    table = pl.read_csv(out)
    assert table.columns == ["query", "model", "sample", "answer", "correct", "label_probability"]
    assert table.height == table.select("query", "model", "sample").unique().height == 80
    assert {*table["model"]} == {"small", "large"}
    answers = pl.read_csv(log).select("query", "model", "sample", said="answer")
    joined = table.join(answers, on=["query", "model", "sample"])
    assert joined.height == 80
    assert (joined["said"] == joined["answer"]).all()
    table.with_columns(correct=(pl.col("answer") == "yes").cast(int)).write_csv(out)
    with pytest.warns(UnlabelledWarning, match="small 40, large 40"):
        read = rcjax.read_log(log, labels=out)
    whole = rcjax.read_log(log, labels=pl.DataFrame({"query": range(60), "answer": "yes"}))
    places = [whole.models.index(name) for name in read.models]
    truth = np.asarray(whole.correct)[:, places]
    np.testing.assert_array_equal(np.asarray(read.correct)[read.labelled], truth[read.labelled])
    assert read.labelled.sum(0).min() >= 3
    # A second round takes the labels over and draws others.
    more = tmp_path / "more.csv"
    succeed("label", log, "--labels", out, "--n", 40, "--out", more)
    again = pl.read_csv(more)
    assert again.height == 120
    assert again["correct"].null_count() == 40


# The terminal


@pytest.fixture
def sheet(tmp_path):
    rows = [(AnswerKey(f"q{i}", "small"), Texts(f"{i}?", "", f"{i}!\x1b[2J\nmore"), None, 0.5) for i in range(4)]
    return LabelSheet.of(tmp_path / "sheet.csv", [*rows, (AnswerKey("q9", "small"), Texts(), True, 0.5)])


def press(monkeypatch, sheet, keys):
    """Ask, with these keys pressed; Ctrl-C where they end."""
    pressed = iter(keys)

    def getchar():
        key = next(pressed, "\x03")
        if key == "\x03":
            raise KeyboardInterrupt
        return key

    monkeypatch.setattr(typer, "getchar", getchar)
    if keys.endswith("\x03"):
        with pytest.raises(typer.Exit) as leaving:
            ask_labels(sheet, "rcjax tune log.csv")
        assert leaving.value.exit_code == label_terminal.INTERRUPTED
    else:
        ask_labels(sheet, "rcjax tune log.csv")
    return read_sheet(sheet.path).labels


def test_keys_label_skip_undo_and_quit(sheet, monkeypatch, capsys):
    assert press(monkeypatch, sheet, "yxnq") == [True, False, None, None, True]  # x means nothing
    shown = capsys.readouterr().out
    assert "0 of 5" not in shown
    assert "1 of 5 labelled" in shown
    assert "0!\\x1b[2J\n  more" in shown
    assert "small" not in shown
    assert "3 of 5 are labelled, 2 are left; the same command goes on" in shown
    # It goes on behind them; what was labelled before can be undone too, and skips are asked again.
    assert press(monkeypatch, sheet, "uyq") == [True, True, None, None, True]
    assert press(monkeypatch, sheet, "snq") == [True, True, None, False, True]
    capsys.readouterr()
    assert press(monkeypatch, sheet, "suYnuyq") == [True, True, True, False, True]
    assert "all 5 are labelled: rcjax tune log.csv" in capsys.readouterr().out
    assert press(monkeypatch, sheet, "") == [True, True, True, False, True]


def test_an_interrupt_loses_nothing(sheet, monkeypatch, capsys):
    assert press(monkeypatch, sheet, "yn\x03") == [True, False, None, None, True]
    assert "saved in" in capsys.readouterr().out


def test_a_table_without_answers_cannot_be_asked(tmp_path):
    bare = LabelSheet.of(tmp_path / "bare.csv", [(AnswerKey("q", "small"), Texts("Why?"), None, 1.0)])
    with pytest.raises(ValueError, match=r"bare\.csv: it shows no answers, which nobody can judge: .* --answers FILE"):
        ask_labels(bare, "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal")
def test_in_a_real_terminal_killed_and_gone_on(sheet, tmp_path):
    sheet.write()
    log = tmp_path / "log.csv"
    rows = "".join(f"q{i},small,-0.5,1\n" for i in (0, 1, 2, 3, 9))
    log.write_text(f"query,model,logprob,cost\n{rows}")  # a table that is there is gone on with, if it is of the log
    command = [sys.executable, "-c", MAIN, "label", str(log), "--out", str(sheet.path), "--ask"]

    def ask(keys, end):
        import pty

        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
        os.close(theirs)
        for key in keys:
            _read_until(ours, b"quit: ")
            os.write(ours, key.encode())
        _read_until(ours, b"quit: ")
        if end == "kill":
            process.send_signal(signal.SIGKILL)
        else:
            os.write(ours, end.encode())
        status = process.wait(60)
        os.close(ours)
        return status

    assert ask("yn", "kill") == -signal.SIGKILL
    assert read_sheet(sheet.path).labels == [True, False, None, None, True]
    assert ask("un", "\x03") == 130
    assert read_sheet(sheet.path).labels == [True, False, None, None, True]
    assert ask("y", "q") == 0
    assert read_sheet(sheet.path).labels == [True, False, True, None, True]


def _read_until(terminal, words):
    """Read until these words are there, and then all there is: keys are taken once the screen has been written."""
    text, until = b"", time.monotonic() + 60
    while words not in text:
        assert select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0], text
        text += os.read(terminal, 4096)
    while select.select([terminal], [], [], 0.3)[0]:
        os.read(terminal, 4096)
