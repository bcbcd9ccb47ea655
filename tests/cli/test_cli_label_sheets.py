"""`rcjax label --ask` on a table that is there: it goes on with one of the log, and refuses that of another one."""

from types import SimpleNamespace

import pytest
import typer
from command_line import fail, run

from rcjax.cli import label
from rcjax.logs.label_sheet import AnswerKey, LabelSheet, Texts, read_sheet

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal in which somebody says yes, then leaves."""
    stream, keys = SimpleNamespace(isatty=lambda: True), iter("yq")
    monkeypatch.setattr(label, "sys", SimpleNamespace(stdin=stream, stdout=stream))
    monkeypatch.setattr(typer, "getchar", lambda: next(keys))


def test_a_table_of_another_log_is_refused(tmp_path, terminal):
    """It went on without a word, and the labels were those of other answers."""
    log, out = tmp_path / "log.csv", tmp_path / "out.csv"
    log.write_text("query,model,logprob,cost,answer\n" + "".join(f"{i},m,-0.5,1,=said {i}\n" for i in range(3)))

    def write(*answers):
        rows = [(AnswerKey(query, "m"), Texts("?", "", text), None, 0.5) for query, text in answers]
        LabelSheet.of(out, rows).write()
        return out.read_bytes()

    before = write(("0", "=said 0"), ("1", "another"))
    assert "out.csv, row 2: query 1, model m answers '=said 1' in the log, not 'another'" in fail(
        "label", log, "--out", out, "--ask"
    )
    write(("x", "a"), ("y", "b"))
    assert "the log has none of its answers" in fail("label", log, "--out", out, "--ask")
    assert read_sheet(out).labels == [None, None]
    assert write(("0", "=said 0"), ("1", "another")) == before
    write(("0", "=said 0"), ("7", "gone"))
    result = run("label", log, "--out", out, "--ask")
    assert result.exit_code == 0, result.stderr
    assert "1 of the 2 answers of out.csv is not in log.csv: is it the table of another log?" in result.stderr
    assert read_sheet(out).labels == [True, None]
