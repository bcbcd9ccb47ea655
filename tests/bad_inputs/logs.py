"""What is wrong with logs."""

from collections.abc import Callable
from pathlib import Path

from bad_inputs import BadFile, text_file
from bad_inputs.good_files import LOG

_HEADER = "query,model,logprob,correct,cost"
_CALL = '{"call_log": 1, "query": 1, "model": "small", "logprob": -1, "correct": 1, "cost": 1}\n'
_ROW = '{"query": 1, "model": "small", "logprob": -1, "correct": 1, "cost": 1}\n'


def _with_cost(cost: str) -> Callable[[Path], Path]:
    """The good log, but for the cost of the first answer of the model small."""

    def write(folder: Path) -> Path:
        header, first, *others = (folder / LOG).read_text().splitlines()
        path = folder / f"cost_{cost}.csv"
        path.write_text("\n".join([header, first.rpartition(",")[0] + f",{cost}", *others]) + "\n")
        return path

    return write


_SAMPLED = "query,model,sample,logprob,correct,cost,answer"


_TIMED = f"{_HEADER},seconds"


LOGS = (
    *(
        BadFile(
            f"has seconds of {cell}",
            "log",
            text_file("timed.csv", f"{_TIMED}\n1,small,-1,1,1,2\n1,large,-1,1,1,{cell}\n"),
            (f"timed.csv, line 3, model large: seconds {cell} {why}",),
        )
        for cell, why in (("-2", "< 0: give the seconds"), ("inf", "> 1e+09: give"), ("soon", "is not clear: give the"))
    ),
    BadFile(
        "has seconds and milliseconds",
        "log",
        text_file("both.csv", f"{_TIMED},latency_ms\n1,small,-1,1,1,2,2000\n"),
        ("both.csv: columns seconds and latency_ms both occur: drop one of the two",),
    ),
    BadFile(
        "has a sample twice",
        "log",
        text_file("twice.csv", f"{_SAMPLED}\n1,small,1,-1,1,1,a\n1,small,2,-1,1,1,a\n1,small,1,-1,0,1,b\n"),
        ("twice.csv, line 4, model small: sample 1 of the query is there already in line 2: number the samples",),
    ),
    BadFile(
        "has a sample without a number",
        "log",
        text_file("unnumbered.csv", f"{_SAMPLED}\n1,small,1,-1,1,1,a\n1,small,,-1,1,1,a\n"),
        ("unnumbered.csv, line 3, model small: sample is missing: number the answers of a model to a query",),
    ),
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
