"""What is wrong with tables of what models answered."""

from bad_inputs import BadFile, text_file
from bad_inputs.good_files import QUERIES


def _said(query: str, model: str, answer: str = "A") -> str:
    return "query,model,answer\n" + "".join(f"{query.format(i)},{model},{answer}\n" for i in range(QUERIES))


SAID = (
    BadFile(
        "has no answers", "said", text_file("mute.csv", _said("{}", "small", "")), ("mute.csv: it holds no answers",)
    ),
    BadFile(
        "lacks the column answer",
        "said",
        text_file("lacking.csv", "query,model\n0,small\n"),
        ("lacking.csv: rename or add missing columns answer",),
    ),
    BadFile(
        "lacks the models",
        "said",
        text_file("whose.csv", "query,answer\n0,A\n"),
        ("whose.csv: rename or add missing columns model",),
    ),
    BadFile(
        "contradicts itself",
        "said",
        text_file("twice.csv", _said("{}", "small") + "3,small,B\n"),
        (f"twice.csv, line {QUERIES + 2}, model small: answer B is another answer to the query",),
    ),
    BadFile(
        "names no query",
        "said",
        text_file("nameless.csv", "query,model,answer\n,small,A\n"),
        ("nameless.csv, line 2, model small: query is missing",),
    ),
    BadFile(
        "writes queries as decimals",
        "said",
        text_file("decimals.csv", _said("{}.0", "small")),
        ("decimals.csv", "'0' in the log and '0.0' in the answers"),
    ),
    BadFile("is about other models", "said", text_file("others.csv", _said("{}", "huge")), ("of the models huge",)),
    BadFile(
        "is nested too deep",
        "said",
        text_file("deep.jsonl", '{"query": 0, "model": "small", "answer": ' + "[" * 10_000),
        ("deep.jsonl",),
    ),
)
