"""What is wrong with questions, with `models.toml`, with a log of `rcjax collect`, and with a rubric."""

import json

from bad_inputs import BadFile, text_file

_PRICE = "input = 1\noutput = 2\n"


def _questions(fault: str, name: str, content: str | bytes, *says: str) -> BadFile:
    return BadFile(fault, "questions", text_file(name, content), (name, *says))


def _models(fault: str, name: str, content: str | bytes, *says: str) -> BadFile:
    return BadFile(fault, "models", text_file(name, content), (name, *says))


def _answers(fault: str, name: str, content: str | bytes, *says: str) -> BadFile:
    return BadFile(fault, "answers", text_file(name, content), (name, *says))


_ROW = {"call_log": 1, "call": "a", "query": "q", "model": "m"}

_ANSWER = _ROW | {
    "text": "4",
    "reference": [],
    "correct": None,
    "logprob": -0.5,
    "cost": 0.0,
    "asked": '{"signal": "stated"}',
}


def _edited(name: str, **values: object) -> tuple[str, str]:
    """The name of a file, and an answer as `rcjax collect` writes it with something changed."""
    return name, json.dumps(_ANSWER | values) + "\n"


COLLECTING = (
    _questions("is no JSON", "text.jsonl", "Dear all\n", "line 1: not JSON"),
    _questions("is a list", "list.jsonl", "[1]\n", "line 1: not a JSON object"),
    _questions("is nested too deep", "deep.jsonl", '{"prompt": ' + "[" * 100_000, "nested too deep"),
    _questions("is Latin-1", "latin.jsonl", '{"prompt": "é"}\n'.encode("latin-1"), "not UTF-8"),
    _questions("is cut off", "cut.jsonl", '{"prompt": "x"}\n{"prompt', "line 2: not JSON"),
    _questions("has no prompt", "other.csv", "question,answer\nx,y\n", "no column prompt"),
    _questions("has a row without a prompt", "hole.csv", "prompt,answer\nx,y\n,z\n", "row 2: no prompt"),
    _questions("has one id twice", "twice.csv", "query,prompt\n1,x\n1,y\n", "row 2: query 1 is that of row 1"),
    _questions("has an answer that is no choice", "odd.csv", "prompt,choices,answer\nx,A|B,C\n", "row 1: the answer C"),
    _questions("has a column of ours", "cost.csv", "prompt,cost\nx,1\n", "column cost is one of the log's own"),
    _questions(
        "has a column of samples", "sample.csv", "prompt,sample\nx,1\n", "column sample is one of the log's own"
    ),
    _questions("is half a Parquet file", "half.parquet", b"PAR1" + bytes(40), "cannot be read"),
    _questions("is of another kind", "book.xlsx", b"PK", "cannot be read"),
    _models("is no TOML", "text.toml", "Dear all", "cannot be read"),
    _models("is nested too deep", "deep.toml", "x = " + "[" * 100_000, "nested too deep"),
    _models("has a model without a price", "free.toml", "[small]\n", "model small: no input price"),
    _models("has a setting that is none", "odd.toml", f"[small]\n{_PRICE}keys = 1", "keys is no setting"),
    _models("has a price in words", "words.toml", "[small]\ninput = 'x'\noutput = 1", "input must be a number"),
    _models("has a signal that is none", "sure.toml", f"[small]\n{_PRICE}signal = 'sure'", "no signal"),
    _models(
        "has no sample", "none.toml", f"[small]\n{_PRICE}samples = 0", "model small: samples must be a whole number"
    ),
    _models("has samples in words", "three.toml", f"[small]\n{_PRICE}samples = 'three'", "samples must be a whole"),
    _models("has an address that is none", "here.toml", f"[small]\n{_PRICE}base_url = 'here'", "base_url must begin"),
    _models("names a model twice", "two.toml", f"[small]\n{_PRICE}[small]\n{_PRICE}", "cannot be read"),
    _models("is YAML", "models.yaml", "small: 1", "TOML"),
    _answers("is a text", "letter.jsonl", "Dear all\n", "line 1: this is no file of rcjax collect"),
    _answers("is another JSON", "rows.jsonl", '{"a": 1}\n', "line 1: this is no file of rcjax collect"),
    _answers(
        "is a log of a service without shadow calls",
        "calls.jsonl",
        '{"call_log": 1, "query": "a", "model": "b"}\n',
        "no answer to a query that went to all models",
    ),
    _answers(
        "is of another version", "new.jsonl", json.dumps(_ROW | {"call_log": 9}) + "\n", "no file of rcjax collect"
    ),
    _answers("has odd money", "odd.jsonl", json.dumps(_ROW | {"at_most": -1}) + "\n", "line 1"),
    _answers("has failures alone", "failed.jsonl", json.dumps(_ROW | {"error": "x"}) + "\n", "no answers in it"),
    _answers("has a verdict in words", *_edited("words.jsonl", correct="right"), "line 1: correct is 'right'"),
    _answers("has a logprob above 0", *_edited("above.jsonl", logprob=0.5), "line 1: logprob is 0.5"),
    _answers("has a sample that is none", *_edited("sample.jsonl", sample=0), "line 1: sample is 0"),
    _answers("has a sample in words", *_edited("first.jsonl", sample="first"), "line 1: sample is 'first'"),
    _answers("has no cost", *_edited("cost.jsonl", cost=None), "line 1: cost is None"),
    _answers("has a text for its answers", *_edited("texts.jsonl", reference="4"), "line 1: reference is '4'"),
    _answers("does not tell how it asked", *_edited("asked.jsonl", asked="{}"), "line 1: asked is '{}'"),
    BadFile("has no place for the answer", "rubric", text_file("short.txt", "Is it right?"), ("short.txt", "{answer}")),
    BadFile("is no text", "rubric", text_file("bytes.txt", b"\xff\xfe\xfa"), ("bytes.txt", "not UTF-8")),
)
