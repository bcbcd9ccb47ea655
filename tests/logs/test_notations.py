"""Numbers, names and missing values as tables have them: one file has one notation, and what is unclear is refused."""

import json

import pandas as pd
import pyarrow as pa
import pytest

from rcjax.logs import LogError, NoConfidenceWarning, read_log

COLUMNS = ("query", "model", "correct", "confidence", "cost", "latency_ms")


def table(latencies=("300", "299"), confidence="0,9", head=""):
    """A file of Excel's in German: semicolons, and commas for decimals."""
    rows = [
        f"{i};{model};{(i + j) % 2};{confidence};0,{j + 1};{latencies[i % 2]}"
        for i in range(6)
        for j, model in enumerate("ab")
    ]
    return "\n".join([*([head] if head else []), ";".join(COLUMNS), *rows]) + "\n"


def written(place, text, encoding="utf-8"):
    path = place / "log.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_thousands_with_points_beside_decimal_commas_are_refused(tmp_path):
    """4.299 ms were 0.0043 s, and the mean 0.13 s in place of 2.2."""
    says = r"log.csv, line 4, model a: latency_ms 4.299 has a point, and confidence 0,9 a comma: write all decimals"
    with pytest.raises(LogError, match=says):
        read_log(written(tmp_path, table(("300", "4.299"))))
    log = read_log(written(tmp_path, table(("300", "4299"))))
    assert float(log.seconds.mean()) == pytest.approx(2.2995)
    with pytest.raises(LogError, match=r"line 3, model b: confidence 0.7 has a point, and confidence 0,9 a comma"):
        read_log(written(tmp_path, table().replace("b;1;0,9", "b;1;0.7", 1)))
    with pytest.raises(LogError, match=r"line 2, model a: latency_ms 4,299 has a comma"):
        read_log(written(tmp_path, table(("4,299", "300"), "0.9").replace("0,1", "0.1").replace("0,2", "0.2")))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_first_line_of_excel_sets_the_separator(encoding, tmp_path):
    log = read_log(written(tmp_path, table(head="sep=;"), encoding))
    assert (log.models, log.n_queries) == (("a", "b"), 6)
    with pytest.raises(LogError, match=r"log.csv, line 4: model is missing"):
        read_log(written(tmp_path, table(head="sep=;").replace("0;b", "0;", 1), encoding))


@pytest.mark.parametrize("word", ["NA", "None", "null", "N/A", "nan"])
def test_a_word_for_a_missing_confidence_is_an_empty_cell(word, tmp_path):
    """The message spoke of percentages."""
    with pytest.warns(NoConfidenceWarning, match="1 answer of a"):
        log = read_log(written(tmp_path, table().replace("0,9", word, 1)))
    assert log.n_queries == 6
    with pytest.raises(LogError, match=rf"cost {word} is missing: give the money"):
        read_log(written(tmp_path, table().replace("0,1", word, 1)))


@pytest.mark.parametrize("model", [{"name": "small"}, ["small"]])
def test_a_model_that_is_no_text_is_refused(model, tmp_path):
    path = tmp_path / "log.jsonl"
    row = {"query": 1, "model": model, "correct": 1, "confidence": 0.5, "cost": 1}
    path.write_text("\n".join(json.dumps(row | {"query": number}) for number in range(4)) + "\n")
    with pytest.raises(LogError, match=r"row 1: model .*small.* is not a text: give the model's name, a string"):
        read_log(path)


@pytest.mark.parametrize("twice", ["cost", "other"])
def test_a_frame_with_a_column_twice(twice):
    once = pd.DataFrame({name: [1, 2] for name in COLUMNS} | {"other": [1, 2]})
    frame = pd.concat([once, once[[twice]]], axis=1)
    arrays = pa.Table.from_arrays([pa.array([1, 2])] * len(frame.columns), names=[*frame.columns])
    for source in (frame, arrays):
        with pytest.raises(LogError, match=f"column {twice} occurs twice: drop one of the two$"):
            read_log(source)
