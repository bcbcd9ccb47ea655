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


def _with_part(name: str, spoil: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A log of calls that rolled over, whose one part is spoilt."""

    def write(folder: Path) -> Path:
        path, part = folder / f"{name}.jsonl", folder / f"{name}.2026-11-24.0001.jsonl"
        path.write_text(_CALL)
        if not part.is_dir():
            part.unlink(missing_ok=True)  # of the command before
        spoil(part)
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
    BadFile(
        "has a damaged part",
        "log",
        _with_part("damaged", lambda part: part.write_text(_CALL + "oops\n")),
        ("damaged.2026-11-24.0001.jsonl, line 2: not JSON",),
    ),
    BadFile(
        "has a part with a bad row",
        "log",
        _with_part("bad_row", lambda part: part.write_text(_CALL + _CALL.replace('"call_log": 1', '"call_log": 2'))),
        ("bad_row.2026-11-24.0001.jsonl, row 2, model small: call_log 2 is from a newer rcjax",),
    ),
    BadFile(
        "has a part that is another log",
        "log",
        _with_part("mixed", lambda part: part.write_text(_ROW)),
        ("mixed.2026-11-24.0001.jsonl: it has the name of a part of mixed.jsonl, but holds no calls: move it away",),
    ),
    BadFile(
        "has a part that is a folder",
        "log",
        _with_part("folder", lambda part: part.mkdir(exist_ok=True)),
        ("folder.2026-11-24.0001.jsonl: it has the name of a part of folder.jsonl, and is a folder: move it away",),
    ),
    BadFile(
        "has a part that leads nowhere",
        "log",
        _with_part("nowhere", lambda part: part.symlink_to("absent.jsonl")),
        ("nowhere.2026-11-24.0001.jsonl: it has the name of a part of nowhere.jsonl, and is no file: move it away",),
    ),
    BadFile(
        "has a part that is not text",
        "log",
        _with_part("binary", lambda part: part.write_bytes(b"\xff\xfe\x00\x01\x80")),
        ("binary.2026-11-24.0001.jsonl: it has the name of a part of binary.jsonl, and cannot be read",),
    ),
)
