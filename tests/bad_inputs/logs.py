"""What is wrong with logs."""

from bad_inputs import BadFile, text_file

_HEADER = "query,model,logprob,correct,cost"
_CALL = '{"call_log": 1, "query": 1, "model": "small", "logprob": -1, "correct": 1, "cost": 1}\n'
_ROW = '{"query": 1, "model": "small", "logprob": -1, "correct": 1, "cost": 1}\n'


LOGS = (
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
