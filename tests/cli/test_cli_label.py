"""`rcjax label`: what it draws and writes, how its table comes back, and the terminal that asks."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import typer
from helpers.command_line import fail, rows_of, run, succeed, write_log

import rcjax
from rcjax.cli import label
from rcjax.logs import UnlabelledWarning

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
        prompt=pl.format('[{{"role": "user", "content": "What is \\ud800 {}?"}}]', "query"),
        answer=pl.format("{} says {}", "model", "query"),
    ).write_csv(path)
    return path


def test_labels_in_the_table_are_read_by_tune(log, rows, tmp_path):
    out = tmp_path / "to_label.csv"
    told = succeed("label", log, "--n", 60, "--task", "choice", "--out", out)
    assert "No answer is labelled" in told
    assert "60 answers to label, drawn at random" in told
    assert told.endswith(f"then tune with it:\n  rcjax tune {log} --labels {out} --task choice\n")
    table = pl.read_csv(out)
    assert table.columns == ["query", "model", "question", "answer", "correct"]
    assert table["correct"].null_count() == 60
    assert table.select(pl.format("{} says {}", "model", "query"))["model"].to_list() == table["answer"].to_list()
    assert table["question"].to_list() == [f"What is ? {query}?" for query in table["query"]]
    assert "is there already, and stays: give another file, or go on in it with --ask" in fail(
        "label", log, "--out", out
    )
    assert "none of its 60 rows has a label" in fail("tune", log, "--labels", out)
    truth = {(query, model): "yes" if right else "Wrong" for query, model, _, right, *_ in rows}
    table.with_columns(correct=pl.Series([truth[key] for key in table.select("query", "model").rows()])).write_csv(out)
    with pytest.warns(UnlabelledWarning, match="60 of 360 answers are labelled"):
        rcjax.read_log(log, labels=out, task="choice")
    document = json.loads(succeed("tune", log, "--labels", out, "--task", "choice", "--no-bands", "--json"))
    assert document["models"] == ["small", "middle", "large"]
    # A second table holds the labels of the first.
    more = tmp_path / "more.csv"
    document = json.loads(succeed("label", log, "--n", 20, "--labels", out, "--out", more, "--json"))
    drawn = {"drawn": 20, "models": document["models"], "written": str(more)}
    assert document == drawn | {"how": "drawn at random, equally many of each model"}
    again = pl.read_csv(more)
    assert again["correct"][:20].null_count() == 20 == again["correct"].null_count()
    assert {*again[20:].select("query", "model").rows()} == {*table.select("query", "model").rows()}
    rest = succeed("label", log, "--labels", out, "--n", 301, "--out", tmp_path / "third.csv")
    assert "300 answers to label, all that lack a label" in rest


def test_the_table_shows_questions_of_a_second_file(rows, tmp_path):
    log = write_log(tmp_path / "log.csv", rows, "query,model,logprob,cost")
    questions = tmp_path / "questions.jsonl"
    asked = [{"query": str(i), "prompt": f"{i}?", "answer": "42"} for i in range(120)]
    questions.write_text("".join(json.dumps(one) + "\n" for one in asked))
    out = tmp_path / "out.csv"
    told = succeed("label", log, "--n", 9, "--questions", questions, "--out", out)
    assert "the table shows no answers" in told
    table = pl.read_csv(out)
    assert table.columns == ["query", "model", "question", "right_answer", "correct"]
    assert table["question"].to_list() == [f"{query}?" for query in table["query"]]
    assert {*table["right_answer"]} == {42}


def test_impossible_draws_are_refused(log, rows, tmp_path):
    out = tmp_path / "out.csv"
    whole = write_log(tmp_path / "whole.csv", rows)
    assert "every answer has a label already" in fail("label", whole, "--out", out)
    assert "the labels are the log itself" in fail("label", log, "--labels", log, "--out", out)
    for options, words in {
        ("--ask",): "needs a terminal",
        ("--ask", "--json"): "does not go with --json",
        ("--out", tmp_path / "out.parquet"): "must end in .csv",
    }.items():
        result = run("label", log, "--out", out, *options)
        assert (result.exit_code, words in " ".join(result.stderr.replace("│", " ").split())) == (2, True), options
    assert not out.exists()


def test_of_several_samples_the_first_of_the_most_frequent_answer_is_labelled(tmp_path):
    random, table = np.random.default_rng(0), []
    for query in range(60):
        for model, samples, skill in (("small", 3, 0.6), ("large", 1, 0.9)):
            for sample in range(samples):
                answer = "yes" if random.random() < skill else "no"
                row = {"query": query, "model": model, "sample": sample, "answer": answer}
                table.append(row | {"confidence": random.uniform(0.3, 0.9), "cost": 1.0 if model == "small" else 9.0})
    log, out = tmp_path / "log.csv", tmp_path / "to_label.csv"
    pl.DataFrame(table).write_csv(log)
    succeed("label", log, "--n", 80, "--out", out)
    drawn = pl.read_csv(out)
    assert drawn.columns == ["query", "model", "sample", "answer", "correct"]
    assert drawn.height == drawn.select("query", "model", "sample").unique().height == 80
    joined = drawn.join(pl.DataFrame(table).rename({"answer": "said"}), on=["query", "model", "sample"])
    assert (joined["said"] == joined["answer"]).all()
    drawn.with_columns(correct=(pl.col("answer") == "yes").cast(int)).write_csv(out)
    with pytest.warns(UnlabelledWarning, match="small 40, large 40"):
        read = rcjax.read_log(log, labels=out)
    whole = rcjax.read_log(log, labels=pl.DataFrame({"query": range(60), "answer": "yes"}))
    truth = np.asarray(whole.select(read.models).correct)
    np.testing.assert_array_equal(np.asarray(read.correct)[read.labelled], truth[read.labelled])


# The terminal


@pytest.fixture
def sheet(tmp_path):
    path = tmp_path / "sheet.csv"
    columns = {"query": [f"q{i}" for i in range(5)], "note": "hm", "model": "small", "question": "?"}
    answers = [f"{i}!\x1b[2J\nmore" for i in range(5)]
    pl.DataFrame(columns | {"answer": answers, "correct": [None] * 4 + [1]}).write_csv(path)
    return path


def labels_in(path):
    table = pl.read_csv(path)
    assert table.columns == ["query", "note", "model", "question", "answer", "correct"]
    return table["correct"].to_list()


def press(monkeypatch, sheet, keys, end=0):
    """Ask, with these keys pressed."""
    stream, pressed = SimpleNamespace(isatty=lambda: True), iter(keys)

    def getchar():
        key = next(pressed)
        if key == "\x03":
            raise KeyboardInterrupt
        return key

    monkeypatch.setattr(label, "sys", SimpleNamespace(stdin=stream, stdout=stream))
    monkeypatch.setattr(typer, "getchar", getchar)
    result = run("label", "log.csv", "--out", sheet, "--ask")
    assert result.exit_code == end, result.stderr
    return labels_in(sheet), result.stdout


def test_keys_label_skip_and_quit(sheet, monkeypatch):
    labels, told = press(monkeypatch, sheet, "yxsNq")  # x means nothing
    assert labels == [1, None, 0, None, 1]
    assert "1 of 5 labelled" in told
    assert "0!\\x1b[2J\n  more" in told
    assert "small" not in told
    assert f"\nsaved in {sheet}: 2 of 5 are left; the same command goes on\n" in told
    labels, told = press(monkeypatch, sheet, "y\x03", 130)  # an interrupt loses nothing
    assert labels == [1, 1, 0, None, 1]
    labels, told = press(monkeypatch, sheet, ["\x1b[n", "n\r"])  # an arrow, and a key that comes with Enter
    assert labels == [1, 1, 0, 0, 1]
    assert "all are labelled\nNext: tune with these labels:\n  rcjax tune log.csv --labels" in told
    pl.read_csv(sheet).drop("answer").write_csv(sheet)
    result = run("label", "log.csv", "--out", sheet, "--ask")
    assert "it shows no answers, which nobody can judge" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal")
def test_labelling_resumes_after_a_kill_in_a_real_terminal(sheet):
    command = [sys.executable, "-c", MAIN, "label", "log.csv", "--out", str(sheet), "--ask"]

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
        status = process.wait(120)
        os.close(ours)
        return status

    assert ask("yn", "kill") == -signal.SIGKILL
    assert labels_in(sheet) == [1, 0, None, None, 1]
    assert ask("y", "\x03") == 130
    assert labels_in(sheet) == [1, 0, 1, None, 1]


def _read_until(terminal, words):
    """Read until these words are there and the terminal takes single keys: those that come earlier are dropped."""
    import termios

    text, until = b"", time.monotonic() + 300
    while words not in text or termios.tcgetattr(terminal)[3] & termios.ICANON:
        assert time.monotonic() < until, text
        if select.select([terminal], [], [], 0.02)[0]:
            text += os.read(terminal, 4096)
