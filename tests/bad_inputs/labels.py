"""What is wrong with labels."""

import json

from bad_inputs import BadFile, text_file
from bad_inputs.good_files import LOG, QUERIES

_CALL = {"call_log": 1, "query": "0", "model": "small", "answer": "B", "logprob": -0.1, "cost": 1e-5}


def _judged(query: str, model: str) -> str:
    return "query,model,correct\n" + "".join(f"{query.format(i)},{model},1\n" for i in range(QUERIES))


LABELS = (
    BadFile("are the log itself", "labels", lambda folder: folder / LOG, (LOG, "the labels are the log itself")),
    BadFile(
        "are a call log",
        "labels",
        text_file("calls.jsonl", json.dumps(_CALL) + "\n"),
        ("calls.jsonl", "the models' own"),
    ),
    BadFile(
        "write queries as decimals",
        "labels",
        text_file("decimals.csv", _judged("{}.0", "small")),
        ("decimals.csv", "'0' in the log and '0.0' in the labels"),
    ),
    BadFile(
        "write models in capitals",
        "labels",
        text_file("capitals.csv", _judged("{}", "SMALL")),
        ("'small' in the log and 'SMALL' in the labels",),
    ),
    BadFile(
        "are about other models", "labels", text_file("others.csv", _judged("{}", "huge")), ("about the models huge",)
    ),
    BadFile(
        "are nested too deep",
        "labels",
        text_file("deep.jsonl", '{"query": ' + "[" * 100_000),
        ("line 1", "nested too deep"),
    ),
)
