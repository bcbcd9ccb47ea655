"""Whatever stands in a log: it is read, or refused in one line that names the file, and nothing else happens."""

import json
import warnings

from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.logs import LogError

COLUMNS = ("query", "model", "logprob", "correct", "cost", "answer", "sample", "seconds", "judged")
ROWS = [[query, model, -0.5, query % 2, 0.25, "a", 1, 0.5, 1] for query in range(1, 4) for model in ("small", "large")]
CELLS = st.sampled_from(
    ["", "x", "-1", "1.5", "nan", "inf", "-inf", "1e300", "yes", "1,5", '"', "\0", "\ud7ff", ";", "9" * 40]
)
VALUES = CELLS | st.sampled_from([None, True, -3, 2.5, [], [1], {}, {"a": None}])
CHANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), min_size=1, max_size=3)


def refusal(path, **options):
    """Why a log cannot be used; nothing where it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rcjax.read_log(path, **options)
        except LogError as problem:
            return str(problem)
    return ""


@settings(max_examples=examples(200), deadline=None, database=None)
@given(CHANGES, st.data(), st.sampled_from(",;\t|"), st.sampled_from(["utf-8", "utf-16"]), st.sampled_from(range(9)))
def test_a_damaged_table_is_read_or_refused_in_one_line(tmp_path_factory, changes, data, separator, encoding, left_out):
    table = [[*map(str, row)] for row in ROWS]
    for row, column in changes:
        table[row][column] = data.draw(CELLS)
    kept = [[cell for place, cell in enumerate(row) if place != left_out or left_out < 5] for row in [COLUMNS, *table]]
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes("\n".join(separator.join(row) for row in kept).encode(encoding))
    told = refusal(path)
    assert not told or (told.startswith("any.csv") and "\n" not in told), told


@settings(max_examples=examples(200), deadline=None, database=None)
@given(CHANGES, st.data(), st.booleans(), st.integers(0, 40))
def test_damaged_json_lines_are_read_or_refused_in_one_line(tmp_path_factory, changes, data, calls, cut):
    lines = [dict(zip(COLUMNS, row, strict=True)) | ({"call_log": 1, "shadow": True} if calls else {}) for row in ROWS]
    for row, column in changes:
        lines[row][COLUMNS[column]] = data.draw(VALUES)
    text = "\n".join(map(json.dumps, lines))
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(text[: len(text) - cut] if cut < 20 else text)
    told = refusal(path)
    assert not told or (told.startswith("any.jsonl") and "\n" not in told), told
