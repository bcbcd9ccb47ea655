"""`rcjax import`: what it prints and writes, and that the next command takes it."""

import json
from pathlib import Path

import polars as pl
import pytest
from helpers.command_line import rows_of, run, succeed, write_log

import rcjax

FILES = Path(__file__).parents[1] / "logs" / "importing" / "files"
EVAL = sorted((FILES / "inspect").glob("*.eval"))
PRICES = {"small": {"input": 0.1, "output": 0.4}, "large": {"input": 2.5, "output": 10.0}}

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_import_writes_a_log_that_tune_reads(ending, tmp_path):
    out = tmp_path / f"log.{ending}"
    shown = succeed("import", *EVAL, "--out", out)
    assert "8 queries, 8 of them answered by all of 2 models" in shown
    assert shown.endswith("Next: add more: 8 queries that all models answered tell too little; log a hundred\n")
    log = rcjax.read_log(out, task="choice", prices=PRICES)
    assert log.models == ("small", "large")
    assert log.answer is not None  # agreement can be tried at once
    assert "answer for rcjax tune to compare" in " ".join(shown.replace(",", "").split())
    assert log.cost.tolist() == pytest.approx([(50 * 0.1 + 3 * 0.4) / 1e6, (50 * 2.5 + 3 * 10.0) / 1e6], rel=1e-6)


def test_import_prints_one_json_document(tmp_path):
    out = tmp_path / "log.csv"
    document = json.loads(succeed("import", FILES / "promptfoo", "--out", out, "--json"))
    assert (document["queries"], document["answered_by_all"], document["out"]) == (8, 7, str(out))
    assert [model["answers"] for model in document["models"]] == [7, 8]
    assert document["notes"][-1] == "1 answer left out: 1 with an error"
    assert pl.read_csv(out).height == 15


def test_after_calls_without_labels_the_next_step_is_to_label(tmp_path):
    out = tmp_path / "log.csv"
    calls = FILES / "litellm" / "calls.jsonl"
    shown = " ".join(succeed("import", calls, "--prompts", "--out", out).split())
    assert "the files have no labels of 18 answers" in shown
    assert "Next: add more: 9 queries" in shown
    assert pl.read_csv(out)["prompt"][0] == "What is 0 + 1? Number only."
    document = json.loads(succeed("import", calls, "--out", out, "--json"))
    assert [model["accuracy"] for model in document["models"]] == [None, None]
    succeed("label", out, "--n", 8, "--out", tmp_path / "to_label.csv")
    wide = FILES / "wide" / "table.csv"
    assert "8 queries" in succeed("import", wide, "--format", "wide", "--out", out)


def test_models_are_renamed_and_columns_are_mapped(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("id,engine,ok,confidence,cost\n1,a/x,1,0.5,1\n1,b/y,0,0.25,2\n")
    columns = ["--column", "query=id", "--column", "model=engine", "--column", "correct=ok"]
    out = tmp_path / "log.csv"
    succeed("import", table, *columns, "--rename", "b/y=strong", "--out", out)
    assert out.read_text().splitlines()[0] == "query,model,correct,logprob,cost"
    assert pl.read_csv(out)["model"].to_list() == ["x", "strong"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--column", "query"], "give pairs of two names"),
        (["--score-max", "0"], "is not above 0"),
    ],
)
def test_wrong_options_of_import_are_usage_errors(options, says, tmp_path):
    result = run("import", *EVAL, *options, "--out", tmp_path / "log.csv", "--json")
    assert result.exit_code == 2
    assert says in json.loads(result.stdout)["error"]["message"]
    assert not (tmp_path / "log.csv").exists()


def test_a_file_of_another_kind_is_refused_before_any_work(tmp_path):
    result = run("import", tmp_path / "absent.eval", "--out", tmp_path / "log.xlsx")
    assert result.exit_code == 1
    assert (
        result.stderr
        == "error: log.xlsx: a log of kind '.xlsx' cannot be written: give .csv, .tsv, .parquet, .jsonl, .ndjson\n"
    )


def test_the_next_command_is_one_that_runs(tmp_path):
    """It matches the best model; without labels some are drawn, no more than there are."""
    whole = write_log(tmp_path / "whole.csv", rows_of(0, 60))
    assert " --match 1% " in succeed("import", whole, "--out", tmp_path / "log.csv")
    bare = write_log(tmp_path / "bare.csv", [(*row[:3], "", *row[4:]) for row in rows_of(0, 25)])
    assert " --n 75 " in succeed("import", bare, "--out", tmp_path / "unlabelled.csv")
    tokens = "query,model,logprob,correct,input_tokens,output_tokens"
    unpriced = write_log(tmp_path / "unpriced.csv", rows_of(0, 60), tokens)
    priced = succeed("import", unpriced, "--out", tmp_path / "free.csv")
    assert priced.endswith(" --prices prices.toml --out policy.json\n")
    wrong = write_log(tmp_path / "wrong.csv", [(*row[:3], 0, *row[4:]) for row in rows_of(0, 60)])
    assert "Next: look at the labels" in succeed("import", wrong, "--out", tmp_path / "all_wrong.csv")
    one = write_log(tmp_path / "one.csv", [row for row in rows_of(0, 60) if row[1] == "small"])
    assert "Next: add the answers of another model" in succeed("import", one, "--out", tmp_path / "single.csv")


def test_the_next_step_is_that_of_choices_and_of_models_with_queries_of_their_own(tmp_path):
    frame = pl.read_csv(write_log(tmp_path / "whole.csv", rows_of(0, 60)))
    for answer, task in (("A", " --task choice "), ("Paris", "")):
        table = tmp_path / f"{answer}.csv"
        frame.with_columns(answer=pl.lit(answer)).write_csv(table)
        shown = succeed("import", table, "--out", tmp_path / "log.csv")
        assert task in shown
        assert ("--task" in shown) == bool(task)
    apart = [(f"{row[1]} {row[0]}", *row[1:]) for row in rows_of(0, 60)]
    shown = succeed("import", write_log(tmp_path / "apart.csv", apart), "--out", tmp_path / "log.csv")
    assert "Next: have all models answer the same queries, under the same ids: 0 of 180" in " ".join(shown.split())
