"""Only what nobody else can have written counts as private."""

import os

import pytest

from rcjax._core.program_files import is_private

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no owners of files")


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    path = folder / "file"
    path.write_text("")
    path.chmod(0o600)
    return path


def test_a_file_of_ones_own_is_private(file):
    assert is_private(file)
    assert is_private(file.parent)


@pytest.mark.parametrize("mode", [0o602, 0o622, 0o666])
def test_a_file_that_all_may_write_is_not(file, mode):
    file.chmod(mode)
    assert not is_private(file)


def test_nor_one_in_a_folder_that_all_may_write_to(file):
    file.parent.chmod(0o777)
    assert not is_private(file)


def test_a_sticky_folder_above_is_no_harm_but_files_in_it_are(file):
    file.parent.chmod(0o1777)
    assert is_private(file)  # nobody else can rename it
    assert not is_private(file.parent)  # but anybody can put files there


def test_links_are_followed(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(file)
    assert is_private(link)
    file.chmod(0o666)
    assert not is_private(link)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_nor_one_of_somebody_else(file):
    os.chown(file, 12345, -1)
    assert not is_private(file)


def test_a_group_counts_unless_it_is_the_users_own(file, monkeypatch):
    file.chmod(0o660)
    monkeypatch.setattr("rcjax._core.program_files._is_private_group", lambda number: False)
    assert not is_private(file)
    monkeypatch.setattr("rcjax._core.program_files._is_private_group", lambda number: True)
    assert is_private(file)
