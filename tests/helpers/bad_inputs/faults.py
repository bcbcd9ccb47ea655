"""What is wrong with files: what can befall a file of any kind, and a few faults of each kind.

Each reader has its own table of faults beside its tests: here stand those that commands must tell of alike.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.bad_inputs import BadFile, text_file
from helpers.bad_inputs.good_files import LOG, QUERIES

ENDINGS = {
    **{"log": "csv", "labels": "csv", "said": "csv", "prices": "json", "policy": "json"},
    **{"sweep": "toml", "evaluation": "json", "questions": "jsonl", "models": "toml", "answers": "jsonl"},
    "rubric": "txt",
}
DEEP = "[" * 100_000
PRICE = "input = 1\noutput = 2\n"
INSPECT = Path(__file__).parents[2] / "logs" / "importing" / "files" / "inspect"
ANSWER = {"call_log": 1, "call": "a", "query": "q", "model": "m", "text": "4", "reference": [], "correct": None} | {
    "cost": 0.0,
    "request_settings": '{"signal": "stated"}',
}


def tampered(kind: str, path: tuple, value: Any) -> Callable[[Path], Path]:
    """A writer of the good file with another value at a place."""

    def write(folder: Path) -> Path:
        data = json.loads((folder / f"{kind}.json").read_text("utf-8"))
        *parents, last = path
        spot = data
        for key in parents:
            spot = spot[key]
        spot[last] = value
        return text_file("tampered.json", json.dumps(data))(folder)

    return write


def half_of_inspect(folder: Path) -> Path:
    """The start of a log of Inspect."""
    (good,) = INSPECT.glob("*.json")
    return text_file("half.json", good.read_bytes()[:3000])(folder)


def judged(query: str) -> str:
    """A label for each query, written like this."""
    return "query,model,correct\n" + "".join(f"{query.format(i)},small,1\n" for i in range(QUERIES))


#: By kind: what is wrong, the file's name with its content or its writer, and what the error says.
TABLE: dict[str, list[tuple[Any, ...]]] = {
    "log": [
        ("is a call log nested too deep", ("calls.jsonl", '{"call_log": 1, "query": ' + DEEP), "calls.jsonl"),
        ("is UTF-16 cut off", ("odd.csv", "query,model".encode("utf-16")[:-1]), "UTF-16, but is not"),
        ("has one long line", ("long.csv", "x" * 1_000_000), "found: xxx", "xxx…"),
        ("holds zeros", ("zeros.csv", bytes(4096)), "zeros.csv", "rename or add them"),
    ],
    "labels": [
        ("are the log itself", lambda folder: folder / LOG, "the labels are the log itself"),
        ("write queries as decimals", ("ids.csv", judged("{}.0")), "the log has query '0' of model"),
        ("are nested too deep", ("deep.jsonl", '{"query": ' + DEEP), "line 1", "nested too deep"),
    ],
    "said": [
        ("names no query", ("nameless.csv", "query,model,answer\n,small,A\n"), "line 2, model small: query is missing"),
        ("is nested too deep", ("deep.jsonl", '{"query": 0, "model": "small", "answer": ' + DEEP), "deep.jsonl"),
    ],
    "prices": [
        ("is nested too deep", ("deep.json", '{"small": ' + DEEP), "nested"),
        ("is TOML nested too deep", ("deep.toml", "small = " + DEEP), "nested"),
        ("has a price of 5,000 digits", ("more.json", '{"a": [1' + "0" * 5000 + ", 1]}"), "more"),
        ("names a model twice", ("two.json", '{"a": [1, 1], "a": [2, 2]}'), "'a' is there twice"),
    ],
    "policy": [
        ("is nested deeply", ("deep.json", '{"format": "rcjax-policy", "models": ' + DEEP), "not JSON"),
        ("is of another format", ("other.json", '{"format": 5}'), "format", "is 5"),
        ("has a record that is a list", tampered("policy", ("provenance", "tuning"), [1]), "provenance.tuning: must"),
    ],
    "sweep": [
        ("is nested deeply", ("deep.toml", "logs = " + DEEP), "nested too deep"),
        ("has a deep setting", ("wrong.toml", 'logs = ["log.csv"]\nlam' + ".a" * 3_000 + " = 1"), "file['lam']"),
        ("trains on NaN", ("wrong.toml", 'logs = ["log.csv"]\ntrain = nan'), "file['train']: must be between"),
    ],
    "evaluation": [
        ("is another JSON", ("other.json", '{"a": 1}'), "unknown format: give a file of"),
        ("is half a log of Inspect", half_of_inspect, "cannot be read"),
        ("is nested deeply", ("deep.json", '{"evalId": 1, "results": ' + DEEP), "cannot be read"),
    ],
    "questions": [
        ("is nested too deep", ("deep.jsonl", '{"prompt": ' + DEEP), "nested too deep"),
        ("is Latin-1", ("latin.jsonl", '{"prompt": "é"}\n'.encode("latin-1")), "not UTF-8"),
        ("has no prompt", ("other.csv", "question,answer\nx,y\n"), "no column prompt"),
    ],
    "models": [
        ("is nested too deep", ("deep.toml", "x = " + DEEP), "nested too deep"),
        ("has a model without a price", ("free.toml", "[small]\n"), "model small: no input price"),
        ("names a model twice", ("two.toml", f"[small]\n{PRICE}[small]\n{PRICE}"), "cannot be read"),
    ],
    "answers": [
        ("is a text", ("letter.jsonl", "Dear all\n"), "line 1: this is not a file of rcjax collect"),
        ("has a logprob above 0", ("above.jsonl", json.dumps(ANSWER | {"logprob": 0.5})), "line 1: logprob is 0.5"),
    ],
    "rubric": [
        ("has no place for the answer", ("short.txt", "Is it right?"), "{answer}"),
        ("is no text", ("bytes.txt", b"\xff\xfe\xfa"), "not UTF-8"),
    ],
}


def faults_of(kind: str) -> list[BadFile]:
    """All faults of a kind of file."""
    absent, empty = (f"{name}.{ENDINGS[kind]}" for name in ("absent", "empty"))
    return [
        BadFile("is not there", kind, lambda folder: folder / absent, (absent,)),
        BadFile("is empty", kind, text_file(empty, ""), (empty,)),
        *(
            BadFile(fault, kind, where if callable(where) else text_file(*where), says)
            for fault, where, *says in TABLE[kind]
        ),
    ]


BAD_FILES = [bad for kind in ENDINGS for bad in faults_of(kind)]
