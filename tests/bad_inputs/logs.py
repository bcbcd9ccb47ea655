"""What is wrong with logs."""

from collections.abc import Callable
from pathlib import Path

from bad_inputs import BadFile, text_file
from bad_inputs.good_files import LOG

_HEADER = "query,model,logprob,correct,cost"
_ROW = '{"query": 1, "model": "small", "logprob": -1, "correct": 1, "cost": 1}\n'


def _with_cost(cost: str) -> Callable[[Path], Path]:
    """The good log, but for the cost of the first answer of the model small."""

    def write(folder: Path) -> Path:
        header, first, *others = (folder / LOG).read_text().splitlines()
        path = folder / f"cost_{cost}.csv"
        path.write_text("\n".join([header, first.rpartition(",")[0] + f",{cost}", *others]) + "\n")
        return path

    return write


LOGS = (
    *(
        BadFile(f"has a cost of {cost}", "log", _with_cost(cost), (f"line 2, model small: cost {cost} {sign} 1e",))
        for cost, sign in (("1e200", ">"), ("1e155", ">"), ("1e19", ">"), ("1e-300", "<"), ("1e-19", "<"))
    ),
    BadFile(
        "is nested too deep", "log", text_file("deep.jsonl", _ROW + '{"query": ' + "[" * 10_000), ("line 2", "nested")
    ),
    BadFile(
        "is a call log nested too deep",
        "log",
        text_file("calls.jsonl", '{"call_log": 1, "query": ' + "[" * 10_000),
        ("calls.jsonl",),
    ),
    BadFile(
        "is not UTF-8",
        "log",
        text_file("latin.csv", f"{_HEADER}\n1,small,-1,1,1\n1,größe,-1,1,1\n".encode("latin-1")),
        ("latin.csv, line 3: not UTF-8 text",),
    ),
    BadFile(
        "is UTF-16 cut off",
        "log",
        text_file("odd.csv", _HEADER.encode("utf-16")[:-1]),
        ("odd.csv", "UTF-16, but is not"),
    ),
    BadFile("has one long line", "log", text_file("long.csv", "x" * 1_000_000), ("found: xxx", "xxx…")),
    BadFile(
        "has 10,000 columns",
        "log",
        text_file("wide.csv", ",".join(f"c{i}" for i in range(10_000))),
        ("and 9,980 more",),
    ),
    BadFile("holds zeros", "log", text_file("zeros.csv", bytes(4096)), ("zeros.csv", "add missing columns")),
    BadFile(
        "has a field too many",
        "log",
        text_file("ragged.csv", f"{_HEADER}\n1,small,-1,1,1,9\n".replace(",", ";")),
        ("line 2: 6 fields, 5 in the header: put text that holds a semicolon in quotes",),
    ),
)
