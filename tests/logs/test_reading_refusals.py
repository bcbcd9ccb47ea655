"""Logs: what cannot be used is refused, and the message says where, what and what to do."""

import pandas as pd
import polars as pl
import pytest
from helpers.log_samples import HEADER, PRICES, ROWS, costed, refusal, table, write

from rcjax.logs import LogError, read_log
from rcjax.logs.reading import with_times
from rcjax.logs.sources import join_parts


@pytest.mark.parametrize(
    ("bad", "where", "advice"),
    [
        ("3,small,0.3,1,1", "model small: logprob 0.3 > 0", "name the column confidence"),
        ("3,small,-1,maybe,1", "model small: correct maybe is not clear", "true, false, 1, 0"),
        ("3,small,-1,2,1", "model small: correct 2 > 1", "--score-max"),
        ("3,small,-1,1,inf", "model small: cost inf > 1e+300", "0 or more"),
        ("3,small,-1,1", "model small: cost is missing", "0 or more"),
        ("3, ,-1,1,1", "model is missing", "a string"),
        (",small,-1,1,1", "model small: query is missing", "an integer or a string"),
        ("7,small,-1,1,1", "model small: query 7 was answered already in line 3", "keep one row"),
        ("3,small,-1,1,1,,x", "7 fields, 5 in the header", "quotes"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(bad, where, advice, tmp_path):
    message = refusal(write(tmp_path, HEADER, *ROWS[:3], bad))
    start = "log.csv, line 5: " if where.startswith(("model is", "7 fields")) else "log.csv, line 5, "
    assert message.startswith(start + where)
    assert advice in message


def test_the_first_bad_row_is_named_in_frames_too():
    frame = costed().to_pandas()
    frame.loc[[3, 5], "logprob"] = 0.25
    message = refusal(frame)
    assert message.startswith("pandas.DataFrame, row 4, model small: logprob 0.25 > 0")
    again = pl.concat([costed(), costed()[1:2]])
    assert "row 7, model small: query 7 was answered already in row 2" in refusal(again)


def test_missing_columns_are_listed_with_near_names():
    message = refusal(costed().rename({"model": "modell", "correct": "is_right"}))
    assert (
        "no columns model, correct: rename or add them (did you mean 'modell' for 'model', 'is_right' for 'correct'?)"
        in message
    )
    assert "found: query, modell, logprob, is_right" in message
    assert "logprob (or confidence)" in refusal(costed().drop("logprob"))
    bare = table().drop("input_tokens", "output_tokens")
    assert "no column cost (or input_tokens and output_tokens)" in refusal(bare)
    assert "no column output_tokens" in refusal(table().drop("output_tokens"))
    message = refusal(bare.with_columns(cost=1.0), prices=PRICES)
    assert "no columns input_tokens, output_tokens: rename or add them, or leave out the prices" in message


def test_synonyms_of_columns_are_suggested():
    """Each is suggested once: the tokens of the prompt are not those of the answer."""
    names = ["request_id", "llm", "p_yes", "is_correct", "prompt_tokens", "completion_tokens"]
    with pytest.raises(LogError) as refused:
        read_log(pl.DataFrame({name: [1] for name in names}), prices={"a": {"input": 1, "output": 1}})
    assert (
        "(did you mean 'request_id' for 'query', 'llm' for 'model', 'is_correct' for 'correct', 'p_yes' for "
        "'confidence', 'prompt_tokens' for 'input_tokens', 'completion_tokens' for 'output_tokens'?)"
    ) in str(refused.value)


def test_the_command_for_other_names_holds_the_guesses(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("query_id,model,p_yes,is_correct,cost\n1,a,.5,1,1\n")
    with pytest.raises(LogError, match=r"rcjax import log\.csv --column query=query_id --column correct=is_correct "):
        read_log(log)


def test_a_repeated_answer_of_several_files_names_the_file_and_its_row(tmp_path):
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for file in files:
        file.write_text("query,model,logprob,correct,cost\n1,a,-.5,1,1\n1,b,-.5,1,1\n")
    with pytest.raises(LogError, match=r"row 1 of two\.csv, model a: .* in row 1 of one\.csv: .*names of their own$"):
        read_log(join_parts(files))


def test_columns_that_contradict_each_other(tmp_path):
    message = refusal(costed().with_columns(confidence=0.5))
    assert "logprob and confidence both occur: drop one" in message
    assert "column cost occurs twice" in refusal(write(tmp_path, HEADER + ",cost", *ROWS))
    twice = costed().to_pandas()
    twice = pd.concat([twice, twice["cost"]], axis=1)
    assert refusal(twice).startswith("pandas.DataFrame: ")


@pytest.mark.parametrize(
    ("column", "values"),
    [("model", [1, 2] * 3), ("query", [0.5] * 6), ("logprob", [[1]] * 6), ("cost", [True] * 6)],
)
def test_columns_of_an_unusable_type(column, values):
    message = refusal(costed().with_columns(pl.Series(column, values)))
    assert message.startswith(f"polars.DataFrame: column {column} holds ")
    assert "give" in message or "log-probabilities are" in message


def test_files_that_cannot_be_read(tmp_path):
    assert "missing.csv: No such file or directory" in refusal(tmp_path / "missing.csv")
    assert "is a directory" in refusal(tmp_path)
    assert "is empty" in refusal(write(tmp_path))
    message = refusal(write(tmp_path, "x", name="a.txt"))
    assert "'.txt' cannot be read: give .csv, .tsv, .parquet, .jsonl, .ndjson" in message
    assert "log.csv: no rows" in refusal(write(tmp_path, HEADER))
    assert "no rows" in refusal(costed().clear())
    assert refusal(write(tmp_path, "x", name="a.parquet")).startswith("a.parquet: cannot be read: ")
    latin = tmp_path / "latin.csv"
    latin.write_bytes(f"{HEADER}\n7,gr\xf6\xdfe,-1,1,1\n".encode("latin-1"))
    assert refusal(latin) == "latin.csv, line 2: not UTF-8 text: save the file as UTF-8"
    unclosed = f'{HEADER}\n7,small,-1,1,1\n8,"small,-1,1,1\n9,small,-1,1,1\n'
    message = refusal(write(tmp_path, unclosed))
    assert message == "log.csv, line 3: a quote is opened and not closed: close it, and double quotes within a text"
    with pytest.raises(TypeError, match="source must be the path of a file, or a dataframe, not a list"):
        read_log([1, 2])
    with pytest.raises(LogError, match="choose generation or choice"):
        read_log(costed(), task="essay")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"query": 1, "model":', "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"query": 1, "model": "b", "logprob": -Infinity, "correct": 1, "cost": 1}', "write them in quotes"),
    ],
)
def test_broken_json_lines(line, why, tmp_path):
    good = '{"query": 1, "model": "a", "logprob": -1, "correct": 1, "cost": 1}'
    message = refusal(write(tmp_path, good, line, name="log.jsonl"))
    assert message.startswith("log.jsonl, line 2: ")
    assert why in message


def test_lines_are_counted_in_files_of_any_kind(tmp_path):
    lines = ["note," + HEADER, '"a\nb, ""c""",' + ROWS[0], "x,3,large,0,1,oops"]
    path = tmp_path / "log.csv"
    for separator, encoding, end in (
        (",", "utf-8", "\n"),
        (";", "utf-8", "\n"),
        ("\t", "utf-16", "\r\n"),
    ):
        text = "".join(line.replace(",", separator) + "\n" for line in lines)
        path.write_bytes(text.replace("\n", end).encode(encoding))
        assert refusal(path).startswith("log.csv, line 4, model large: cost oops is not clear")


def test_ambiguous_decimal_commas_are_refused(tmp_path):
    for text in ("1,5", "1,234,567"):
        path = write(tmp_path, HEADER.replace(",", "\t"), f"1\ta\t-1\t1\t{text}", "2\ta\t-1\t1\t1")
        assert f"cost {text} is not clear: write decimals with a point" in refusal(path)
    tokens = HEADER.replace("cost", "input_tokens,output_tokens").replace(",", ";")
    path = write(tmp_path, tokens, "1;a;-1;1;1,234;1")
    assert "input_tokens 1,234 is not clear: write decimals" in refusal(path, prices={"a": (1, 1)})


@pytest.mark.parametrize("cost", [1e19, 1e-19, 5e-324])
def test_costs_that_would_overflow_are_refused_with_their_row(cost):
    frame = costed().with_columns(cost=pl.Series([1.0, 1e-18, 1e18, 0.0, 1.0, cost]))
    assert refusal(frame).startswith("polars.DataFrame, row 6, model small: cost ")
    assert "costs are 0, or from 1e-18 to 1e+18 per query" in refusal(frame)


@pytest.mark.parametrize(
    ("tokens", "why"), [(1e290, " leads to a cost "), (1.234, "1.234 is not a whole number: give the number")]
)
def test_impossible_tokens_are_refused_with_their_row(tokens, why):
    frame = table().with_columns(input_tokens=pl.Series([1.0, 1.0, 1.0, tokens, 1.0, 1.0]), output_tokens=0.0)
    message = refusal(frame, prices={"small": (1e15, 1), "large": (1, 1)})
    assert message.startswith("polars.DataFrame, row 4, model small: input_tokens ")
    assert why in message


def test_one_model_or_one_answer_is_too_little():
    assert "only one model, small: a cascade needs at least two" in refusal(costed().filter(model="small"))
    rare = pl.concat([costed(), costed()[:1].with_columns(model=pl.lit("ra\nre"))])
    assert "model ra re: only 1 answer, 2 are needed: leave it out of the models" in refusal(rare)


# --- prices ---


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("[small]\ninput = \noutput = 1", ("p.toml: cannot be read", "line 2")),
        ("[small]\ninput = 1\noutput = 1\ncached = 2", ("did you mean 'cached_input' for 'cached'?",)),
        (
            "[llama3.2-1b]\ninput = 1\noutput = 1",
            ("p.toml, model llama3: no input price", "with a dot in quotes"),
        ),
        ("[small]\ninput = -1\noutput = 1", ("p.toml, model small: input price -1", "per million tokens")),
        ("small = 1", ("p.toml, model small: 1 is not a price",)),
        ("small = " + "[" * 100_000, ("p.toml: cannot be read: it is nested too deeply",)),
        ("# nothing", ("p.toml: no prices",)),
    ],
)
def test_bad_prices_are_refused(text, pieces, tmp_path):
    message = refusal(table(), prices=write(tmp_path, text, name="p.toml"))
    for piece in pieces:
        assert piece in message


def test_times_in_milliseconds_are_refused():
    log, frame = read_log(costed()), costed()
    epoch = pl.Series("time", [1_767_225_600_000 + row for row in range(len(frame))])
    for times in (epoch, epoch.cast(pl.String)):
        with pytest.raises(LogError, match=r"polars.DataFrame: time 1767225600000 is after the year 2286: .*seconds"):
            with_times(log, frame.with_columns(times))
    assert with_times(log, frame.with_columns(epoch // 1000)).time[0] == 1_767_225_600
