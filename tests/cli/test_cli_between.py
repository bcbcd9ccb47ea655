"""`rcjax label --between` and `check --against`: labels where two policies differ; `retune` by prices alone."""

import json

import jax
import numpy as np
import polars as pl
import pytest
from helpers.command_line import run

import rcjax
from rcjax.logs import read_log

pytestmark = pytest.mark.usefixtures("own_settings")
NAMES, N = ("small", "large"), 200
PRICES = "[small]\ninput = 0.1\noutput = 0.4\n[large]\ninput = 1.0\noutput = 4.0\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """train.csv, fresh.csv and bare.csv, the latter without labels; policies for little and for much money."""
    path = tmp_path_factory.mktemp("between")
    log = rcjax.sample_log(2 * N, seed=4).select(("llama3.2-1b", "llama3.1-70b"))
    rows = [
        {"query": i, "model": name, "logprob": log.logprob[i, j].item(), "input_tokens": 100, "output_tokens": 50}
        | {"correct": int(log.correct[i, j]), "answer": "right" if log.correct[i, j] else f"wrong {name}"}
        for i in range(2 * N)
        for j, name in enumerate(NAMES)
    ]
    (path / "prices.toml").write_text(PRICES)
    (path / "half.toml").write_text("[large]\ninput = 0.5\noutput = 2.0\n")
    (path / "other.toml").write_text("[large]\ninput = 0.5\noutput = 4.0\n")
    pl.DataFrame(rows[: 2 * N]).write_csv(path / "train.csv")
    pl.DataFrame(rows[2 * N :]).write_csv(path / "fresh.csv")
    pl.DataFrame(rows[2 * N :]).drop("correct").write_csv(path / "bare.csv")
    with jax.enable_x64(True):
        train = read_log(path / "train.csv", task="choice", prices=path / "prices.toml")
        for name, money in (("policy", 0.5), ("dear", 0.9)):
            rcjax.tune(train, budget=money * float(train.cost[1]), intervals=False).policy.save(path / f"{name}.json")
    return path


def test_labels_where_two_policies_differ_decide_which_is_better(folder, tmp_path):
    between = "--between", folder / "policy.json", "--and", "large", "--task", "choice"
    prices, out = ("--prices", folder / "prices.toml"), tmp_path / "to_label.csv"
    result = run("label", folder / "bare.csv", *between, *prices, "--n", "30", "--out", out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "then compare the two with it: rcjax check " in " ".join(result.stdout.split())
    sheet = pl.read_csv(out)
    asked = sheet["query"].n_unique()
    assert 10 < asked <= 30
    assert sheet.height == 2 * asked  # both answers
    assert f"those to {asked} of the " in " ".join(result.stdout.split())
    by_query = sheet.group_by("query").agg(pl.col("answer").n_unique())
    assert (by_query["answer"] == 2).all()
    truth = pl.read_csv(folder / "fresh.csv").select("query", "model", right="correct")
    sheet.join(truth, on=["query", "model"]).with_columns(correct="right").drop("right").write_csv(out)
    line = "check", folder / "policy.json", folder / "bare.csv", "--labels", out, "--against", "large"
    found = json.loads(run(*line, "--json").stdout)
    assert (found["labelled"], found["verdict"] in ("better", "alike")) == (asked, True)
    whole = json.loads(run(*line[:2], folder / "fresh.csv", *line[5:], "--json").stdout)
    assert whole["labelled"] == whole["differing"] == found["differing"]
    assert found["error_difference"] == pytest.approx(whole["error_difference"], abs=4 * found["error_se"])
    assert found["cost_difference"] == pytest.approx(whole["cost_difference"])
    assert found["cost_difference"] > 0
    shown = run(*line)
    assert (shown.exit_code, f"({asked} labelled)" in " ".join(shown.stdout.split())) == (0, True)


def test_the_difference_by_disagreements_is_that_on_all_queries(folder):
    with jax.enable_x64(True):
        from rcjax.tuning.replaying.comparing import Disagreements

        log = read_log(folder / "fresh.csv", task="choice", prices=folder / "prices.toml")
        found = Disagreements.of("small", "large", log)
        right = np.asarray(log.correct)
        assert found.differ.sum() == (~right.all(1)).sum()  # "wrong small" is not "wrong large"
        difference = found.difference()
        assert difference.error_difference == pytest.approx(right[:, 0].mean() - right[:, 1].mean())
        assert difference.verdict_at(0.0) == "better"
        assert Disagreements.of("large", "small", log).difference().verdict_at(0.0) == "worse"
        same = Disagreements.of("large", "large", log).difference()
        assert (same.differing, same.error_difference, same.error_se, same.verdict_at(0.0)) == (0, 0.0, 0.0, "alike")


def test_each_abstention_counts_at_the_price_of_its_policy(folder):
    with jax.enable_x64(True):
        from rcjax.tuning.replaying.comparing import Disagreements, QueryLosses

        train, fresh = (
            read_log(folder / f"{name}.csv", task="choice", prices=folder / "prices.toml")
            for name in ("train", "fresh")
        )
        rung = rcjax.tune(train, lam=0.0, abstain_price=0.3, intervals=False).policy.rungs[0]
        for first, second in ((rung, "large"), ("large", rung)):
            found = Disagreements.of(first, second, fresh)
            assert (found.models < 0).any()
            before, after = (QueryLosses.of(subject, fresh).penalty.mean() for subject in (first, second))
            assert found.difference().error_difference == pytest.approx(after - before)


def test_policies_that_cannot_be_compared_are_refused(folder, tmp_path):
    out = tmp_path / "to_label.csv"
    for options, told in (
        (("--between", "small"), "--between: goes with --and"),
        (("--and", "small"), "--and: goes with --between"),
        (("--between", folder / "policy.json", "--and", "huge"), "no answers of huge; its models are small, large"),
        (("--between", folder / "policy.json", "--and", folder / "policy.json"), "the answers are the same"),
        (("--between", "small", "--and", "large"), "is a model, as that of --and is"),
    ):
        line = "label", folder / "bare.csv", "--prices", folder / "prices.toml", "--out", out, *options
        result = run(*line)
        assert (result.exit_code != 0, out.exists()) == (True, False)
        assert told in " ".join(result.stderr.replace("│", " ").split()), result.stderr
    result = run("check", folder / "policy.json", folder / "bare.csv", "--against", "large")
    assert result.exit_code == 2
    assert "that differ is labelled" in result.stderr


@pytest.mark.parametrize("line", ["evaluate", "check"])
def test_a_screen_has_one_error_of_a_ladder_that_follows_its_bill(folder, line):
    """The screen has the error of a service: decision, comparison and replay move from query to query."""
    files = folder / "policy.json", folder / "fresh.csv", "--prices", folder / "prices.toml"
    result = run(line, *files, "--json")
    assert result.exit_code in (0, 1), (result.stderr, result.exception)
    found = json.loads(result.stdout)
    errors = [found.get("check", found)["error"]["observed"], found["comparison"]["error"]]
    if line == "evaluate":
        errors.append(found["followed"]["error"])
        low, high = found["followed"]["error_interval"]
        assert low < errors[0] < high
        assert found["comparison"]["cost"] == pytest.approx(found["followed"]["bill"])
        table = run(line, *files).stdout.partition("Replayed on")[2]
        (row,) = [row for row in table.splitlines() if row.split()[:1] == ["error"]]
        assert row.count("%") == 2  # predicted and observed, and none at the rung as tuned
        assert table.index(" error ") < table.index("$ per million")
    assert errors == pytest.approx([errors[0]] * len(errors))


def test_new_prices_alone_need_no_log(folder, tmp_path):
    out = tmp_path / "new.json"
    result = run("retune", folder / "policy.json", "--prices", folder / "half.toml", "--out", out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    next_step = " ".join(result.stdout.split()).replace(" ", "").partition("Next:")[2]
    assert next_step.startswith("beforeyoudeployit,inplaceof")  # a service does not watch the new file
    old, new = rcjax.load_policy(folder / "policy.json"), rcjax.load_policy(out)
    assert new.rungs[-1].cost["large"] == pytest.approx(old.rungs[-1].cost["large"] / 2, rel=1e-2)
    assert new.expected["error"] <= old.expected["error"] + 1e-9
    assert new.budget == old.budget
    for options, told in (
        (("--prices", folder / "other.toml"), "have not changed by the same factor"),
        ((), "give a log of fresh queries, or --prices for new prices alone"),
    ):
        result = run("retune", folder / "policy.json", *options, "--out", tmp_path / "other.json")
        assert (result.exit_code != 0, told in result.stderr) == (True, True), result.stderr
        assert not (tmp_path / "other.json").exists()
