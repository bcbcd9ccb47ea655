"""Which tests share a worker: those of a folder, which mostly compile the same programmes."""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

HERE = Path(__file__).parent
#: Modules of their own, which come first: after them nothing is left of what is compiled (tests/conftest.py).
MARKS = ("mark.optimised", "mark.forgetful")


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


class ByFolder(LoadFileScheduling):
    """A folder at a time for each worker."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid.split("::", 1)[0])
