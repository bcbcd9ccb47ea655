"""Whether only this user can have written a file: what is loaded as code must not come from anybody else."""

import os
import stat
from pathlib import Path


def is_private(path: str | os.PathLike[str]) -> bool:
    """Whether nobody but this user, and root, can change a file or folder, or put another in its place.

    So for the path itself and for every folder above it, links followed. A folder that others can write to may stand
    above where its sticky bit keeps them from renaming what is not theirs, as in /tmp. False where the system does
    not tell, as on Windows, and where the path does not exist.

    >>> is_private("/nowhere/at/all")
    False
    """
    if not hasattr(os, "geteuid"):
        return False
    whole = Path(os.path.realpath(path))
    try:
        return _only_ours(whole.stat()) and all(_only_ours(folder.stat(), above=True) for folder in whole.parents)
    except OSError:
        return False


def _only_ours(status: os.stat_result, above: bool = False) -> bool:
    if status.st_uid not in (os.geteuid(), 0) or (status.st_uid == 0 != os.geteuid() and not above):
        return False
    if above and status.st_mode & stat.S_ISVTX:
        return True
    return not status.st_mode & stat.S_IWOTH and (not status.st_mode & stat.S_IWGRP or _is_private_group(status.st_gid))


def _is_private_group(number: int) -> bool:
    """Whether a group is the user's own, as most distributions have it: of the user's name, with no other member."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == number and {*group.gr_mem} <= {user.pw_name}
