import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading

import jax
import polars as pl
import pytest
from helpers.gateway_service import until

import rcjax
from rcjax._base import files
from rcjax._base.files import write_atomically
from rcjax.logs import IncompleteLogWarning, read_log
from rcjax.model.calibrated_models import fit_provenance


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "atomic", "")
    modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("plain", "atomic")}
    assert len(modes) == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, call, error):
    path = tmp_path / "text"
    write_atomically(path, "old")

    def fail(*args):
        raise error("no")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(error):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["text"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path, call, when):
    path = tmp_path / "text"
    write_atomically(path, "old")
    script = f"""if True:
        import os, signal, sys
        from rcjax._base.files import write_atomically
        call = os.{call}
        def killed(*arguments):
            if "{when}" == "after":
                call(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        os.{call} = killed
        write_atomically(sys.argv[1], "new" * 100000)
    """
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -signal.SIGKILL
    assert path.read_text() == ("new" * 100000 if (call, when) == ("replace", "after") else "old")
    write_atomically(path, "newer")
    assert path.read_text() == "newer"


def test_an_error_names_the_file_and_not_the_one_beside_it(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot be written: No space left") as caught:
        write_atomically(tmp_path / "text", "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "text"))


@pytest.mark.skipif(not hasattr(os, "fchown"), reason="a system without owners of files")
def test_a_file_keeps_its_permissions_and_its_owner(tmp_path):
    """As a service that runs as another user must be able to read the new one."""
    path = tmp_path / "keys.toml"
    path.touch()
    path.chmod(0o640)
    owner = (12_345, 12_346) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(path, *owner)
    write_atomically(path, "new", private=True)
    status = path.stat()
    assert (path.read_text(), stat.S_IMODE(status.st_mode)) == ("new", 0o640)
    assert (status.st_uid, status.st_gid) == owner


@pytest.mark.skipif(not hasattr(os, "fchown"), reason="a system without owners of files")
def test_a_file_of_another_owner_keeps_its_group_or_is_private(tmp_path, monkeypatch):
    path, real, allowed = tmp_path / "keys.toml", os.fchown, {-1}
    path.touch()
    path.chmod(0o664)

    def fchown(file, owner, group):
        if owner not in allowed:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(file, owner, group)

    monkeypatch.setattr(files.os, "fchown", fchown)
    write_atomically(path, "new", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    allowed.clear()
    write_atomically(path, "newer", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = f"import sys; from rcjax._base.files import write_atomically; write_atomically({str(pipe)!r}, 'text')"
    with subprocess.Popen([sys.executable, "-c", command]):
        assert pipe.read_text() == "text"
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "text", "")
    assert os.listdir(tmp_path) == []


# Provenance


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "answers.csv"
    frame = pl.DataFrame(
        {
            "query": [0, 0, 1, 1, 2],
            "model": ["small", "large", "small", "large", "small"],
            "confidence": [0.5, 0.9, 0.8, 0.7, 0.6],
            "correct": [0, 1, 1, 1, 0],
            "cost": [1e-5, 1e-4, 1e-5, 1e-4, 1e-5],
        }
    )
    frame.write_csv(path)
    with pytest.warns(IncompleteLogWarning):
        return read_log(str(path), task="choice")


def test_provenance_records_versions_and_data(log, tmp_path):
    told = fit_provenance(log)
    assert told["source"] == "answers.csv"
    assert told["digest"] == log.digest
    assert told["task"] == "choice"
    assert (told["queries"], told["complete_queries"]) == (3, 2)
    assert told["answers"] == {"small": 3, "large": 2}
    assert told["versions"]["rcjax"] == rcjax.__version__
    assert told["versions"]["jax"] == jax.__version__
    assert str(tmp_path) not in json.dumps(told, allow_nan=False)


def test_a_reader_of_standard_output_that_does_not_read_holds_up_nobody(monkeypatch):
    """A service that logs to a full pipe answered nobody."""
    lines, errors = [b"%d %s\n" % (number, b"x" * 1_000) for number in range(500)], dict[bytes, OSError]()
    reader, writer = os.pipe()
    monkeypatch.setattr(files, "OUTPUT", writer)
    monkeypatch.setattr(files, "MAX_WAITING_BYTES", 400_000)
    output = files.StandardOutput()

    def write():
        for line in lines:
            try:
                output.append(line)
            except OSError as problem:
                errors[line] = problem

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    assert {problem.strerror for problem in errors.values()} == {"its reader does not keep up"}
    with os.fdopen(reader, "rb") as file:
        kept = [line for line in lines if line not in errors]
        assert [file.readline() for _ in kept] == kept

    def is_gone():
        errors.clear()
        write()
        return BrokenPipeError in map(type, errors.values())

    until(is_gone)
    output.close()
    os.close(writer)


def test_each_line_that_standard_output_did_not_take_is_an_error_once(monkeypatch):
    """The last one's alone was told: of several that were lost in a row, one counted."""
    reader, writer = os.pipe()
    good_reader, good_writer = os.pipe()
    monkeypatch.setattr(files, "OUTPUT", writer)
    output, told = files.StandardOutput(), 0
    for line in (b"x" * 200_000 + b"\n", b"lost\n", b"lost\n"):  # the first fills the pipe
        output.append(line)
    os.close(reader)
    until(lambda: not output._waiting)
    monkeypatch.setattr(files, "OUTPUT", good_writer)
    for _ in range(5):
        try:
            output.append(b"kept\n")
        except BrokenPipeError:
            told += 1
        until(lambda: not output._waiting)
    output.close()
    os.close(writer)
    os.close(good_writer)
    with os.fdopen(good_reader, "rb") as file:
        assert (told, file.read()) == (3, b"kept\n" * 5)
