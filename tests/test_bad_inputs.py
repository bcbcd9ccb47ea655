"""Bad files get one line that says what is wrong and where, the right exit status, and change nothing on the disk."""

import hashlib
import itertools
from pathlib import Path

import pytest
from bad_inputs import BadFile, Command, Slot, files, frontiers, labels, logs, policies, prices, sweeps
from bad_inputs.commands import COMMANDS
from bad_inputs.good_files import write_good_files
from command_line import run

BAD_FILES: tuple[BadFile, ...] = (
    *files.FILES,
    *labels.LABELS,
    *logs.LOGS,
    *prices.PRICES,
    *frontiers.FRONTIERS,
    *policies.POLICIES,
    *sweeps.SWEEPS,
)

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_good_files(tmp_path_factory.mktemp("good"))


def arguments(command: Command, place: Slot, path: Path, good: dict[str, Path]) -> list:
    """The command line with good files, but for one place."""
    line: list = [command.name, *command.options.split()]
    for slot in command.slots:
        if slot is place:
            line += [*slot.also.split(), *([slot.option] if slot.option else []), path]
        elif not slot.option:
            line.append(good[slot.kind])
    return line


def contents(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def _name(command: Command, *rest: str) -> str:
    reads = command.slots[0].kind
    return "-".join([command.name if reads == "log" else f"{command.name} {reads}", *rest])


READ = [
    pytest.param(command, slot, bad, id=_name(command, slot.option or slot.kind, bad.fault))
    for command in COMMANDS
    for slot in command.slots
    for bad in BAD_FILES
    if bad.kind == slot.kind
]


@pytest.mark.parametrize(("command", "slot", "bad"), READ)
def test_a_bad_file_gets_one_line(command, slot, bad, good):
    folder = good["log"].parent
    path = bad.write(folder)
    before = contents(folder)
    result = run(*arguments(command, slot, path, good))
    assert result.exit_code == command.status, (result.exit_code, result.stdout, result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = [text for text in result.stderr.splitlines() if not text.startswith("warning: ")]
    assert line.startswith("error: ")
    for words in bad.says:
        assert words in line
    assert contents(folder) == before


WRITTEN = [
    pytest.param(command, output, source, id=_name(command, output.option, source.option or source.kind))
    for command in COMMANDS
    for output, source in itertools.product(command.slots, command.slots)
    if output.kind == "output" and source.kind != "output"
]


@pytest.mark.skip(reason="outputs are not yet held to be other files than inputs")
@pytest.mark.parametrize(("command", "output", "source"), WRITTEN)
def test_an_output_that_is_an_input_is_a_usage_error(command, output, source, good):
    raise NotImplementedError
