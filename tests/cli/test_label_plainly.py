"""`rcjax label` needs no prices, and shows what was asked as a person reads it."""

import json

import polars as pl
import pytest
from command_line import rows_of, succeed, write_log

from rcjax.collecting.questions import spoken

pytestmark = pytest.mark.usefixtures("own_settings")

TOKENS = "query,model,logprob,input_tokens,output_tokens"


def test_nobody_needs_prices_to_label(tmp_path):
    log, out = write_log(tmp_path / "log.csv", rows_of(seed=0, n=120), TOKENS), tmp_path / "out.csv"
    said = succeed("label", log, "--n", 30, "--out", out)
    assert "30 answers to label" in said
    assert f"then rcjax tune {log} --labels {out} --prices prices.toml" in said
    table = pl.read_csv(out)
    assert table.height == 30
    assert {*table["model"]} == {"small", "middle", "large"}
    some = json.loads(
        succeed("label", log, "--n", 10, "--models", "small,large", "--out", tmp_path / "b.csv", "--json")
    )
    assert [row["model"] for row in some["models"]] == ["small", "large"]


def test_messages_are_shown_as_texts(tmp_path):
    rows = rows_of(seed=0, n=60)
    log = write_log(tmp_path / "log.csv", rows, "query,model,logprob,cost")
    asked = {
        str(i): json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is {i}?"}])
        for i in range(60)
    }
    table = pl.read_csv(log, schema_overrides={"query": pl.String})
    table = table.with_columns(prompt=pl.col("query").replace_strict(asked), answer=pl.lit("42"))
    table.write_csv(log)
    succeed("label", log, "--n", 20, "--out", tmp_path / "out.csv")
    shown = pl.read_csv(tmp_path / "out.csv")
    assert shown["question"].to_list() == [f"What is {query}?" for query in shown["query"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Why?", "Why?"),
        ("[1, 2]", "[1, 2]"),
        ("[]", "[]"),
        ('{"a": 1}', '{"a": 1}'),
        ('[{"role": "user", "content": "Why?"}]', "Why?"),
        ('{"messages": [{"role": "user", "content": "Why?"}]}', "Why?"),
        (
            '[{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}, '
            '{"role": "user", "content": "Sure?"}]',
            "[user] 2+2?\n\n[assistant] 4\n\n[user] Sure?",
        ),
        (
            '[{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url"}]}]',
            'What is it?\n{"type": "image_url"}',
        ),
    ],
)
def test_what_a_log_keeps_of_a_question_is_said_plainly(text, said):
    assert spoken(text) == said
