"""The output on a terminal: escaped texts, one line for a message, errors of standard output."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rcjax.cli import console

HOSTILE = "\x1b[2J", "\x1b]0;title\x07", "a\nerror: b", "a\rb", "\u202eb", "\u2028", "\x9b31m", "\x7f", "\ud800"


def test_unprintable_characters_are_escaped():
    for text in HOSTILE:
        shown = console.escaped(text)
        assert shown.encode().decode("unicode_escape") == text
        assert console.escaped({text: [text, (1, Path(text))]}) == {shown: [shown, [1, shown]]}


@given(st.text())
def test_printable_text_stays_and_no_other_is_printed(text):
    shown = console.escaped(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()
    assert console.one_line(text).isprintable()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_folds_a_message_between_words_and_a_pipe_not_at_all(monkeypatch, capsys, terminal):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    words = f"some-words of {'x' * 60} that-a-terminal would break anywhere".split()
    console.warn(" ".join(words))
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(lines).split() == ["warning:", *words]
    assert len(lines) == (3 if terminal else 1)


def test_json_is_ascii(capsys):
    document = {text: text for text in HOSTILE}
    console.print_json(document)
    printed = capsys.readouterr().out
    assert printed.removesuffix("\n").isascii()
    assert printed.removesuffix("\n").replace("\x7f", "").isprintable()
    assert json.loads(printed) == document


def test_a_full_standard_output_is_named(monkeypatch):
    def write(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.stdout, "write", write)
    with pytest.raises(OSError, match="No space left") as caught:
        console.print_json({})
    assert caught.value.filename == "standard output"


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_streams_that_are_closed_are_the_null_device(tmp_path, closed):
    """No file of ours takes their numbers, and printing to them does no harm."""
    script = """if True:
        import os, sys
        from rcjax.cli.app import _open_closed_streams
        _open_closed_streams()
        with open(sys.argv[1], "w") as file:
            print("out"); print("err", file=sys.stderr)
            sys.stdout.flush(); sys.stderr.flush()
            file.write(str(file.fileno() > 2))
    """
    path = tmp_path / "file"
    shell = " ".join(f"{number}>&-" for number in closed)
    command = f"exec {sys.executable} -c '{script}' {path} {shell}".replace('"w"', r'"w"')
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert path.read_text() == "True"
    assert done.stdout == ("" if 1 in closed else "out\n")
