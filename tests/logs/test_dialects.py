"""Logs as people write them: separators, encodings, ends of lines, names of columns."""

import json

import pytest
from helpers.log_samples import HEADER, ROWS, assert_same, costed, write

from rcjax.logs import read_log
from rcjax.logs.sources import open_text


def _header(line: str) -> str:
    return "\n".join([line, *ROWS]) + "\n"


_TEXT = _header(HEADER)
WAYS = {
    "semicolons.csv": _TEXT.replace(",", ";").encode(),
    "tabs.tsv": _TEXT.replace(",", "\t").encode(),
    "bars.csv": _TEXT.replace(",", "|").encode(),
    "quoted.csv": _TEXT.replace(",", ";").replace("large", '"large"').replace("query", '"query"').encode(),
    "bar in a name.csv": _TEXT.replace("cost", "cost,a|b|c|d|e|f|g").encode(),
    "decimal commas.csv": _TEXT.replace(",", ";").replace(".", ",").encode(),
    "utf-16.csv": _TEXT.replace("\n", "\r\n").encode("utf-16"),
    "utf-16 without a mark.csv": _TEXT.encode("utf-16-le"),
    "utf-16 with semicolons.csv": b"\xfe\xff" + _TEXT.replace(",", ";").encode("utf-16-be"),
    "mark.csv": _TEXT.replace(",", ";").encode("utf-8-sig"),
    "spaces.csv": _header(' query ,"Model ",logprob,correct,\tcost').encode(),
    "another column.csv": _header(HEADER.replace("cost", "cost,Cost,MODEL")).encode(),
}


@pytest.mark.parametrize("name", WAYS)
def test_usual_dialects_of_csv_give_the_same_log(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(WAYS[name])
    assert_same(read_log(path), read_log(write(tmp_path, HEADER, *ROWS)))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_usual_dialects_of_json_lines_give_the_same_log(encoding, tmp_path):
    records = [row | {"logprob": str(row["logprob"])} for row in costed().to_dicts()]
    lines = [json.dumps({name.upper(): value for name, value in row.items()}) for row in records]
    path = tmp_path / "log.jsonl"
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    assert_same(read_log(path), read_log(costed()))


def test_a_utf8_file_is_not_held_in_memory(tmp_path):
    """Detection looks at the beginning; what polars can read is left to it."""
    for content, held in ((WAYS["semicolons.csv"], False), (WAYS["mark.csv"], False), (WAYS["utf-16.csv"], True)):
        path = tmp_path / "log.csv"
        path.write_bytes(content)
        assert isinstance(open_text(path, ["query"]).content, bytes) == held
