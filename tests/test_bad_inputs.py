"""Bad files get one line that says what is wrong and where, the right exit status, and change nothing on the disk."""

import errno
import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from helpers.bad_inputs import Command, Slot
from helpers.bad_inputs.commands import COMMANDS
from helpers.bad_inputs.faults import BAD_FILES
from helpers.bad_inputs.good_files import write_good_files
from helpers.command_line import run

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_good_files(tmp_path_factory.mktemp("good"))


def arguments(command: Command, place: Slot, path: Path, good: dict[str, Path]) -> list:
    """The command line with good files, but for one place."""
    models = "" if place.kind == "models" else f"--models {good['models']}"
    line: list = [command.name, *command.options.format(models=models, folder=good["log"].parent).split()]
    for slot in command.slots:
        if slot is place:
            line += [*slot.also.split(), *([slot.option] if slot.option else []), path]
        elif not slot.option:
            line.append(good[slot.good or slot.kind])
    return line


def contents(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def _name(command: Command, *rest: str) -> str:
    reads = command.slots[0].kind
    return "-".join([command.name if reads == "log" else f"{command.name} {reads}", *rest])


#: Told otherwise by these commands than by the rest: of a log without labels, or of what alone can be served.
TOLD_OTHERWISE = {
    ("label", "log", "has one long line"),
    ("label", "log", "holds zeros"),
    ("label", "labels", "write queries as decimals"),
    ("serve", "policy", "is of another format"),
}


def bad_files():
    """Every fault, once at least, and every place where a file is read: the places of its kind take turns.

    What is wrong with a file is found by one reader, whichever the command.
    """
    for kind in dict.fromkeys(bad.kind for bad in BAD_FILES):
        places = [(command, slot) for command in COMMANDS for slot in command.slots if slot.kind == kind]
        faults = [bad for bad in BAD_FILES if bad.kind == kind]
        for (command, slot), bad in itertools.product(places, faults):
            turn = (places.index((command, slot)) - faults.index(bad)) % min(len(places), len(faults)) == 0
            if turn or (command.name, kind, bad.fault) in TOLD_OTHERWISE:
                yield pytest.param(command, slot, bad, id=_name(command, slot.option or slot.kind, bad.fault))


@pytest.mark.parametrize(("command", "slot", "bad"), list(bad_files()))
def test_a_bad_file_gets_one_line(command, slot, bad, good):
    folder = good["log"].parent
    path = bad.write(folder)
    before = contents(folder)
    line = arguments(command, slot, path, good)
    result = run(*line)
    assert result.exit_code == command.status, (result.exit_code, result.stdout, result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    (told,) = [text for text in result.stderr.splitlines() if not text.startswith("warning: ")]
    assert told.startswith("error: ")
    for words in bad.says:
        assert words in told
    as_json = run(*line, "--json")
    assert as_json.exit_code == command.status
    assert as_json.stderr == result.stderr
    document = json.loads(as_json.stdout)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "kind"}
    assert document["error"]["kind"] in ("data", "file")
    assert contents(folder) == before


ALIASES = {
    "itself": lambda path, _: path,
    "a symbolic link": lambda path, link: link.symlink_to(path) or link,
}
WRITES = ("output", "lines", "new")
ALLOWED = {("retune", "--out", "policy")}  # a policy is tuned again in its place

WRITTEN = [
    (command, output, source)
    for command in COMMANDS
    for output, source in itertools.product(command.slots, command.slots)
    if output.kind in WRITES and source.kind not in WRITES and (command.name, output.option, source.kind) not in ALLOWED
]


@pytest.mark.parametrize(
    ("command", "output", "source", "alias"),
    [
        pytest.param(*case, alias, id=_name(case[0], case[1].option, case[2].option or case[2].kind, alias))
        for case, alias in zip(WRITTEN, itertools.cycle(ALIASES))
    ],
)
def test_an_output_that_is_an_input_is_a_usage_error(command, output, source, alias, good, tmp_path):
    before = contents(good["log"].parent)
    path = ALIASES[alias](good[source.kind], tmp_path / "link")
    line = [*arguments(command, source, good[source.kind], good), output.option, path, *output.also.split()]
    result = run(*line, "--json")
    assert result.exit_code == 2, (result.stderr, result.exception)
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "usage"
    assert f"Invalid value for {output.option}: " in error["message"]
    assert result.stderr == f"error: {error['message']}\n"
    assert contents(good["log"].parent) == before


def test_a_policy_may_be_tuned_again_in_its_place(good, tmp_path):
    policy = shutil.copy(good["policy"], tmp_path)
    assert run("retune", policy, good["log"], "--out", policy, "--no-bands", "--anyway").exit_code == 0
    assert contents(tmp_path)[policy] != contents(good["log"].parent)[str(good["policy"])]


SAVED = [
    pytest.param(command, slot, id=_name(command, slot.option))
    for command in COMMANDS
    for slot in command.slots
    if slot.kind == "output"
]


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "slot"), SAVED)
def test_a_full_disk_loses_the_file_and_not_the_results(command, slot, good, tmp_path, monkeypatch):
    path = tmp_path / "old"
    first = run(*arguments(command, slot, path, good))
    before = contents(tmp_path)
    assert before, first.output

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    told = f"error: {path}: cannot be written: No space left on device\n"
    result = run(*arguments(command, slot, path, good))
    assert (result.exit_code, result.stderr[-len(told) :]) == (1, told), result.exception
    assert len(result.stdout) > 100
    assert "written to" not in result.stdout
    document = json.loads(run(*arguments(command, slot, path, good), "--json").stdout)
    assert document["error"] == {"kind": "file", "message": told[7:-1]}
    assert len(document) > 3
    assert "written" not in document
    assert contents(tmp_path) == before
