"""Budgets and prices of another unit: asked about before anything is done with them, and taken where they are meant."""

import json

import pytest
from helpers.command_line import TOKEN_PRICES, rows_of, run, write_log

pytestmark = pytest.mark.usefixtures("own_settings")

TOKENS = "query,model,logprob,correct,input_tokens,output_tokens"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A log with costs and one with tokens; prices per million tokens, and the same per token."""
    folder = tmp_path_factory.mktemp("plausible")
    rows = rows_of(seed=0)  # as many, of the same task, as the other tests of commands
    write_log(folder / "log.csv", rows)
    write_log(folder / "tokens.csv", rows, TOKENS)
    for name, scale in (("prices", 1.0), ("per_token", 1e-6)):
        prices = {model: {"input": scale * price, "output": scale * price} for model, price in TOKEN_PRICES.items()}
        (folder / f"{name}.json").write_text(json.dumps(prices))
    return folder


def words(result):
    return " ".join((result.stderr + result.stdout).replace("│", " ").split())


def test_a_budget_of_dollars_per_query_needs_yes(place):
    out = place / "policy.json"
    tune = ("tune", place / "log.csv", "--task", "choice", "--no-bands", "--out", out, "--budget")
    for text, meant in (("60", "60/M"), ("$60", "60/M"), ("60/k", "60/M"), ("0.1", "100/M")):
        result = run(*tune, text)
        assert result.exit_code == 2, (text, words(result))
        advice = f"Then give --budget {meant}; if it is right, add --yes"
        assert advice in words(result), (text, words(result))
        assert not out.exists()
    result = run(*tune, "60", "--json")
    assert json.loads(result.stdout)["error"]["kind"] == "usage"
    assert run(*tune, "60", "--yes").exit_code == 0
    result = run("report", place / "log.csv", "--out", place / "a.html", "--budget", "60")
    assert (result.exit_code, "--yes" in words(result)) == (2, True)


def test_costs_of_another_unit_need_yes(tmp_path):
    rows = [(*row[:4], 1e6 * row[4], *row[5:]) for row in rows_of(seed=0)]
    log = write_log(tmp_path / "log.csv", rows)
    result = run("tune", log, "--budget", "60", "--out", tmp_path / "policy.json")
    assert result.exit_code == 1
    assert "by the column cost an answer of" in words(result)
    assert "is it money per million queries? Write money per query" in words(result)


def test_prices_per_token_need_yes_in_each_command(place, tmp_path):
    policy = place / "tuned.json"
    tokens, per_token = place / "tokens.csv", place / "per_token.json"
    line = ("tune", tokens, "--task", "choice", "--budget", "150/M", "--no-bands", "--out", policy)
    line += ("--prices", place / "prices.json")
    assert run(*line).exit_code == 0
    (place / "sweep.toml").write_text('logs = ["tokens.csv"]\nprices = "per_token.json"\n')
    lines = [
        ("tune", tokens),
        ("diagnose", tokens),
        ("report", tokens, "--out", tmp_path / "page.html"),
        ("label", tokens, "--out", tmp_path / "labels.csv"),
        *((name, policy, tokens) for name in ("evaluate", "check", "retune")),
    ]
    for line in [*((*line, "--prices", per_token) for line in lines), ("sweep", place / "sweep.toml")]:
        result = run(*line)
        assert result.exit_code in (1, 2), line
        assert "per_token.json, model small: input price 1e-07 is" in words(result), line
        assert "if it is meant per token, write 0.1; if it is right, add --yes" in words(result), line
    assert run("evaluate", policy, tokens, "--prices", per_token, "--yes").exit_code == 0
    assert run("evaluate", policy, tokens, "--prices", place / "prices.json").exit_code == 0


@pytest.mark.thorough
def test_an_implausible_log_gives_no_policy(tmp_path):
    log, out = tmp_path / "wrong.csv", tmp_path / "policy.json"
    rows = [
        (i, name, -0.01 * (i % 7) - 0.1, 0, cost, 0, 0) for i in range(60) for name, cost in (("a", 1e-5), ("b", 2e-4))
    ]
    write_log(log, rows)
    line = "tune", log, "--error-cost", "0.001", "--no-bands", "--out", out
    result = run(*line)
    assert (result.exit_code, out.exists()) == (1, False)
    odd, refused = result.stderr.splitlines()
    assert odd.startswith("warning: wrong.csv: no answer of any model is right")
    assert refused == "error: wrong.csv: the log can hardly be right: nothing was written; --yes tunes anyway"
    assert run(*line, "--yes").exit_code == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--match", "0.5 is 50 points more error than today's: was 0.5% meant? Then give --match 0.5%"),
        (
            "--max-error",
            "no model alone has more error than 50.0 %, and any policy meets it: was 0.5% meant? Then give",
        ),
    ],
)
def test_a_share_that_may_be_a_percentage_needs_yes(tmp_path, option, problem):
    rows = [(i, name, -0.1 * (i % 7 + 1), (i + j) % 2, 1e-5, 0, 0) for i in range(60) for j, name in enumerate("ab")]
    tune = ("tune", write_log(tmp_path / "log.csv", rows), "--no-bands", option, "0.5")
    result = run(*tune)
    assert result.exit_code == 2
    assert f"{problem}" in words(result)
    assert run(*tune, "--yes").exit_code == 0


def test_a_log_of_five_queries_gives_no_policy(tmp_path):
    rows = [(i, name, -0.1 * (i + 1), (i + j) % 2, 1e-5, 0, 0) for i in range(5) for j, name in enumerate("ab")]
    log = write_log(tmp_path / "few.csv", rows)
    result = run("tune", log, "--error-cost", "0.001", "--no-bands", "--out", tmp_path / "policy.json")
    assert result.stderr.splitlines()[-1] == (
        "error: few.csv: too few queries (5): nothing was written; --yes tunes anyway"
    )


def test_a_log_of_hundreds_of_models_needs_yes(tmp_path):
    rows = [
        f"{query},m{model},-0.{model % 9 + 1},{model % 2},1e-{model % 5 + 4}"
        for query in range(9)
        for model in range(101)
    ]
    (tmp_path / "many.csv").write_text("\n".join(["query,model,logprob,correct,cost", *rows]))
    result = run("tune", tmp_path / "many.csv", "--max-error", "50%")
    assert result.exit_code == 1
    assert "many.csv: 101 models, whose pairs take minutes: name those that may answer" in words(result)
