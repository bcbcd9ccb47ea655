"""Whatever goes wrong in a command is one line, an exit status, and with --json one document."""

import errno
import json
import signal

import polars as pl
import pytest
import typer
from helpers.command_line import run
from typer.testing import CliRunner

import rcjax
from rcjax.cli import console
from rcjax.cli.app import CommandLine

RAISED = [
    (ValueError("log.csv, line 3:\n  no"), "data", "log.csv, line 3: no"),
    (rcjax.InfeasibleError("no cascade"), "infeasible", "no cascade"),
    (FileNotFoundError(errno.ENOENT, "No such file", "a.csv"), "file", "a.csv: No such file"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory", "there is not enough memory"),
    (MemoryError("Unable to allocate 21.8 TiB"), "memory", "(Unable to allocate 21.8 TiB)"),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), "memory", "there is not enough memory"),
    (ImportError("libjax_common.so: failed to map segment from shared object"), "memory", "there is not enough memory"),
    (pl.exceptions.PanicException("index out of bounds"), "internal", "unexpected PanicException: index out of bounds"),
    (AttributeError("'NoneType' object"), "internal", "RCJAX_TRACEBACK=1"),
    (RuntimeError(), "internal", "unexpected RuntimeError: if the reason is not clear"),
    (KeyError("\x1b[31mname"), "internal", "unexpected KeyError"),
]


def call(body, name, *options):
    """Run a command of this name, in a group, with this body."""
    app = typer.Typer(cls=CommandLine, pretty_exceptions_enable=False)
    app.callback()(lambda: None)

    @app.command(name)
    def command(json_: bool = typer.Option(False, "--json")) -> None:
        body(json_)

    return CliRunner().invoke(app, [name, *options])


@pytest.mark.parametrize(("name", "status"), [("tune", 1), ("check", 2)])
def test_a_failure_is_one_line_and_one_json_document(name, status):
    for problem, kind, message in RAISED:

        def body(_, problem=problem):
            raise problem

        told = call(body, name)
        assert (told.exit_code, told.stdout) == (status, "")
        assert isinstance(told.exception, SystemExit)
        assert told.stderr.startswith("error: ")
        assert message in told.stderr
        assert told.stderr.removesuffix("\n").isprintable()
        as_json = call(body, name, "--json")
        assert (as_json.exit_code, as_json.stderr) == (status, told.stderr)
        assert json.loads(as_json.stdout) == {"error": {"message": told.stderr[len("error: ") : -1], "kind": kind}}


def test_rcjax_traceback_prints_the_traceback(monkeypatch):
    monkeypatch.setenv("RCJAX_TRACEBACK", "1")

    def body(_):
        raise KeyError("name")

    told = call(body, "tune")
    assert "Traceback" in told.stderr
    assert told.stderr.splitlines()[-1].startswith("error: unexpected KeyError")


def test_results_are_printed_before_the_problem():
    def body(as_json):
        problem = console.attempt(lambda: open("/nowhere/x", "w"))  # noqa: SIM115
        console.conclude({"cost": 1}, lambda: print("cost 1"), as_json=as_json, problem=problem)

    told = call(body, "tune")
    assert (told.exit_code, told.stdout) == (1, "cost 1\n")
    assert told.stderr == "error: /nowhere/x: No such file or directory\n"
    document = json.loads(call(body, "tune", "--json").stdout)
    assert document["cost"] == 1
    assert document["error"]["kind"] == "file"


def test_every_command_reports_whatever_reaches_it(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: no memory")

    for module in ("tune", "replays", "checks"):
        monkeypatch.setattr(f"rcjax.cli.{module}.start_jax", broken)
    for name in ("tune", "evaluate", "diagnose", "report", "check", "retune", "sweep"):
        status = 2 if name == "check" else 1
        files = [tmp_path / "a.json"] * (2 if name in ("evaluate", "check", "retune") else 1)
        result = run(name, *files, "--json")
        assert result.exit_code == status, (name, result.exception)
        assert json.loads(result.stdout)["error"]["kind"] == "memory"
        assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def handlers():
    """Restore the signal handlers of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_signal_does_not_kill_a_command_that_ends(handlers):
    """It would end with the status of the signal, its files half closed."""
    with pytest.raises(KeyboardInterrupt), console.terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    signal.raise_signal(signal.SIGTERM)


def test_a_command_that_was_not_stopped_leaves_signals_as_they_were(handlers):
    before = signal.getsignal(signal.SIGTERM)
    with console.terminable():
        pass
    assert signal.getsignal(signal.SIGTERM) == before
