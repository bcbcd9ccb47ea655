"""Which tests share a worker: those of a folder, which mostly compile the same programmes."""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

HERE = Path(__file__).parent
#: Modules of their own, which come first: after them nothing is left of what is compiled (tests/conftest.py).
MARKS = ("mark.optimised", "mark.forgetful")
#: Folders that take longest, which come first: else one worker is at the last of them while the others have nothing.
#: The page's are the first of all: a worker forgets none of what it has compiled for them before it is full.
LONG = tuple(f"tests/{folder}" for folder in ("report", "tuning", "solving", "model", "cli", "serving", "diagnostics"))


@cache
def share(path: str) -> str:
    """Tests of one share run in one process: by folder below `tests`, elsewhere by file.

    >>> share("tests/report/test_phone.py"), share("tests/test_docs.py"), share("rcjax/policy/policy.py")
    ('tests/report', 'tests/test_docs.py', 'rcjax/policy/policy.py')
    """
    file = HERE.parent / path
    if HERE not in file.parents[1:] or any(mark in file.read_text("utf-8") for mark in MARKS):
        return path
    return str(Path(path).parent)


def turn(path: str) -> int:
    """When the share of a file has its turn: 0 is first.

    >>> turn("tests/tuning/test_tune.py"), turn("tests/test_docs.py")
    (1, 7)
    """
    return LONG.index(share(path)) if share(path) in LONG else len(LONG)


class ByFolder(LoadFileScheduling):
    """A folder at a time for each worker."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid.split("::", 1)[0])
