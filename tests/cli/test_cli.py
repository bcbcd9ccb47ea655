"""The command line: exit codes, one JSON document, files, messages."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer
from helpers.call_samples import call
from helpers.command_line import NAMES, TOKEN_PRICES, fail, rows_of, run, succeed, write_folder, write_log
from helpers.gateway_service import make_policy
from tiers import thorough

import rcjax
from rcjax.cli import inputs
from rcjax.logs.importing.evaluations import write_table
from rcjax.logs.sources import TABLES
from rcjax.policy.ladder import Ladder, Queries, policy_from_json
from rcjax.serving.call_log import CallLog

COLUMNS = "80"
pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("logs"))


# -- help, version and usage


def test_version_is_that_of_the_package():
    assert succeed("--version") == f"rcjax {rcjax.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "log.csv", "--budget", "1", "--error-cost", "2"], "give one target, not --budget and --error-cost"),
        (["tune", "log.csv", "--out", "policy.json"], "needs a target"),
        (["tune", "log.csv", "--error-cost", "1", "--out", "log.csv"], "must not be the file"),
        (["tune", "log.csv", "--error-cost", "1", "--out", "p", "--frontier", "./p"], "must not be the file of --out"),
        (["report", "log.csv", "--budget", "1e300"], "where sums of money must lie"),
        (["tune", "log\x1b.csv", "--\x1b]0;title\x07"], r"No such option: --\x1b]0;title\x07"),
        (["tune", "log.csv", "--budget", "cheap"], "is not a sum of money"),
        (["tune", "log.csv", "--max-error", "150%"], "is more than 1"),
        (["tune", "log.csv", "--max-error", "nan"], "is not a share"),
        (["tune", "log.csv", "--today", "gone.json"], "--today': gone.json: No such file or directory"),
        (["tune", "log.csv", "--match", "1"], "must be below 100 points, such as 0.01 (1%)"),
        (["tune", "log.csv", "--error-cost", "0"], "not above 0"),
        (["tune", "log.csv", "--cascade", "a,a"], "names of models"),
        (["tune", "log.csv", "--task", "poetry"], "poetry"),
        (["tune", "log.csv", "--confidence", "95%"], "needs --max-error"),
        (["tune", "log.csv", "--max-error", "0.1", "--confidence", "1"], "below 1 (100%)"),
        (["tune", "log.csv", "--max-seconds", "p90=4"], "give a number of seconds above 0, such as 2 (on average)"),
        (
            ["tune", "log.csv", "--max-error", "0.3", "--confidence", "90%", "--max-seconds", "2"],
            "leave --confidence out",
        ),
        (["tune"], "LOG"),
        (["demo", "--queries", "1"], "50"),
        (["polish"], "polish"),
    ],
)
def test_usage_errors_have_status_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""
    as_json = run(*arguments, "--json")
    assert as_json.exit_code == 2
    error = json.loads(as_json.stdout)["error"]
    assert error["kind"] == "usage"
    assert message in error["message"]
    assert as_json.stderr == f"error: {error['message']}\n"


def test_money_and_shares_are_parsed_in_each_spelling():
    for text in ("0.00015", "150/M", "$150/m", "0.15/k", "0.00015/query"):
        assert inputs.money(text) == pytest.approx(1.5e-4)
    assert inputs.fraction("5%") == inputs.fraction("0.05") == 0.05
    for text in ("2000000/month", "2M/month", "2000k/month", "2 m / month"):
        assert inputs.queries(text) == Queries(2e6, "month")
    with pytest.raises(typer.BadParameter, match="'x' is not a number above 0"):
        inputs.queries("xM/month")


# -- tune


def test_tune_prints_one_json_document(folder):
    budget = 6e-5
    document = json.loads(succeed("tune", folder / "train.csv", "--task", "choice", "--budget", budget, "--json"))
    assert document["models"] == list(NAMES.values())
    assert [row["model"] for row in document["model_summary"]] == document["models"]
    assert all(0 < row["accuracy"] < 1 and row["cost"] > 0 for row in document["model_summary"])
    for point in document["frontier"]:
        assert {"lam", "cost", "error", "models", "rules", "status"} <= set(point)
        assert list(point["rules"]) == point["models"]
        assert point["rules"][point["models"][-1]] == [{"up_to": 1.0, "action": "answer"}]
        assert 0 < point["error"] < 1
        for name in ("error", "cost"):
            low, high = point[f"{name}_interval"]
            assert 0 <= low <= high
    policy = policy_from_json(document["policy"])
    assert policy.expected["cost"] <= budget * (1 + 1e-9)
    assert policy.expected["error_low"] < policy.expected["error_high"]
    assert policy.expected["level"] == 0.9
    verdict, single, last = document["remarks"]
    assert verdict.startswith("use middle alone for ")
    assert " % of the queries and middle → large for the others: by estimate it saves $" in verdict
    assert re.search(
        r"error than large alone, today's \(assumed: give --today\); at worst \(in 9 logs of 10\) [\d.]+ points more$",
        verdict,
    )
    assert single.startswith("middle alone, best single model at or below this price: $")
    assert last.startswith("it pays if one error costs less than $")
    today, alone = document["comparison"]["rivals"]
    assert (today["name"], today["role"], alone["name"]) == ("large", "today", "middle")
    assert today["error_difference"] == pytest.approx(policy.expected["error"] - today["error"])
    # The bill by hand: each answer at what it cost.
    lines = [line.split(",") for line in (folder / "train.csv").read_text().splitlines()[1:]]
    calls = {(query, model): (float(logprob), float(cost)) for query, model, logprob, _, cost in lines}
    queries = {query for query, _ in calls}

    def bill_of(rung, query):
        model, spent = rung.first_model, 0.0
        while model is not None:
            logprob, cost = calls[query, model]
            decision, spent = rung.step(model, logprob=logprob), spent + cost
            model = decision.next_model if isinstance(decision, rcjax.policy.Defer) else None
        return spent

    means = [sum(bill_of(rung, query) for query in queries) / len(queries) for rung in policy.rungs]
    assert policy.expected["cost"] == pytest.approx(np.interp(policy.position, range(len(means)), means), rel=1e-6)


def test_tune_writes_a_policy_that_evaluate_reads(folder, tmp_path):
    policy = tmp_path / "policy.json"
    arguments = ["tune", folder / "train.csv", "--task", "choice", "--max-error", "35%"]
    document = json.loads(succeed(*arguments, "--out", policy, "--json"))
    assert rcjax.load_policy(policy).to_json() == document["policy"]

    seen = json.loads(succeed("evaluate", policy, folder / "test.csv", "--json"))
    assert seen["n"] == 384
    assert seen["models"] == document["policy"]["models"]
    assert all(isinstance(seen[name], float) for name in ("cost", "error", "cost_se", "error_se"))
    assert sum(seen["share"]) == pytest.approx(1)
    assert seen["predicted"] == document["policy"]["expected"]
    assert abs(seen["error"] - seen["predicted"]["error"]) < 5 * seen["error_se"] + 0.05

    shown = succeed("evaluate", policy, folder / "test.csv")
    assert "observed" in shown
    assert max(len(line) for line in shown.splitlines() if str(folder) not in line) <= 80
    assert "(a–b): a 90 % interval" in shown
    assert "384 queries" in shown
    assert "the very log" not in shown
    assert "Next: keep the policy, or deploy it (rcjax serve --help); check again" in " ".join(shown.split())
    low, high = seen["error_interval"]
    assert low < seen["error"] < high
    rows = list(csv.DictReader((folder / "test.csv").open()))
    right = {name: [float(row["correct"]) for row in rows if row["model"] == name] for name in seen["single_models"]}
    assert {"small", "large"} <= {*right}
    for name, one in seen["single_models"].items():
        assert one["error"] == pytest.approx(1 - sum(right[name]) / len(right[name]))
    assert f"alone small {100 * seen['single_models']['small']['error']:.1f} % at $" in " ".join(shown.split())
    own = succeed("evaluate", policy, folder / "train.csv")  # the policy asks fewer models than it was chosen from
    assert "this is the very log that it was tuned on, which is no test of it." in " ".join(own.split())
    assert own.endswith(f"  rcjax evaluate {policy} NEW_LOG.csv\n")  # rcjax check refuses that log
    assert seen["tuned_on_this_log"] is False
    assert json.loads(succeed("evaluate", policy, folder / "train.csv", "--json"))["tuned_on_this_log"] is True


def test_few_labels_give_one_error_and_their_number(folder, tmp_path):
    policy, few = tmp_path / "policy.json", tmp_path / "few.csv"
    succeed("tune", folder / "train.csv", "--task", "choice", "--no-bands", "--match", "3%", "--out", policy)
    write_log(few, [row if row[0] % 8 == 0 else (*row[:3], "", *row[4:]) for row in rows_of(seed=1)])
    shown = " ".join(succeed("evaluate", policy, few).split())
    assert "On the same 384 fresh queries (± one standard error; errors estimated from 48 labelled):" in shown
    assert "Replayed on 384 queries, 48 labelled; (a–b)" in shown
    seen = json.loads(succeed("evaluate", policy, few, "--json"))
    today = seen["comparison"]["rivals"][0]
    assert seen["error"] == pytest.approx(seen["comparison"]["error"])
    assert seen["single_models"][today["name"]]["error"] == pytest.approx(today["error"])
    assert "labelled" not in succeed("evaluate", policy, folder / "test.csv")


def test_a_frontier_is_written_and_evaluated(folder, tmp_path):
    frontier = tmp_path / "frontier.json"
    document = json.loads(succeed("tune", folder / "train.csv", "--task", "choice", "--frontier", frontier, "--json"))
    inputs.require_outputs({"--frontier": frontier}, {}, {"--frontier": "frontier"})  # it may be replaced
    assert len(rcjax.load_frontier(frontier).lam) == len(document["frontier"])
    seen = json.loads(succeed("evaluate", frontier, folder / "test.csv", "--json"))
    replayed = rcjax.replay(rcjax.load_frontier(frontier), rcjax.read_log(folder / "test.csv", task="choice"))
    np.testing.assert_allclose(seen["error"], replayed.error, rtol=1e-12)
    np.testing.assert_allclose(seen["cost"], replayed.cost, rtol=1e-12)
    assert seen["predicted"]["cost"] == pytest.approx([point["cost"] for point in document["frontier"]])
    shown = succeed("evaluate", frontier, folder / "train.csv")
    assert "this is the very log that it was tuned on" in " ".join(shown.split())
    assert max(len(line) for line in shown.splitlines() if str(folder) not in line) <= 80
    assert "the policy comes first, then the log" in run("evaluate", folder / "test.csv", frontier).stderr
    refused = run("check", frontier, folder / "test.csv")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "'rcjax-frontier'" in refused.stderr


def test_a_guarantee_is_tested_on_queries_held_out(folder, tmp_path):
    tune = ["tune", folder / "train.csv", "--no-bands", "--task", "choice", "--confidence", "90%"]
    shown = succeed(*tune, "--max-error", "45%", "--out", tmp_path / "policy.json")  # half of the log is held out
    assert "192 queries" in shown
    assert "192 other queries are held out for the test of the guarantee." in " ".join(shown.split())
    assert "guaranteed with 90 % confidence: the target is kept" in " ".join(shown.split())
    guarantee = rcjax.load_policy(tmp_path / "policy.json").provenance["guarantee"]
    assert (guarantee["n_queries"], guarantee["max_error"]) == (192, 0.45)
    assert guarantee["error_bound"] <= 0.45


def test_a_guarantee_that_cannot_be_given_is_an_error(folder):
    tune = ["tune", folder / "train.csv", "--no-bands", "--task", "choice", "--max-error", "2%", "--confidence", "95%"]
    result = run(*tune)
    assert result.exit_code == 1
    assert "frontier" in result.stdout
    assert result.stderr.startswith("error: no policy can be guaranteed")


@pytest.mark.parametrize(
    "cascade", thorough(["adaptive", "full", "small,large"], lambda cascade: cascade != "small,large")
)
def test_each_search_by_the_model_gives_a_policy(folder, tmp_path, cascade):
    out = tmp_path / "policy.json"
    arguments = ["tune", folder / "train.csv", "--no-bands", "--task", "choice", "--cascade", cascade]
    arguments += ["--error-cost", "0.001"]
    points = json.loads(succeed(*arguments, "--json", "--out", out))["frontier"]
    shown = succeed(*arguments)
    assert "Policy for your target" in shown
    assert max(len(line) for line in shown.splitlines() if str(folder) not in line) <= 80
    if cascade == "adaptive":
        assert all(list(point["rules"]) == point["models"] for point in points)
    else:
        asked = {"full": ["small", "middle", "large"], "small,large": ["small", "large"]}[cascade]
        assert all(point["models"] == asked for point in points)
    assert json.loads(succeed("evaluate", out, folder / "test.csv", "--json"))["n"] == 384


def test_tokens_are_priced_as_when_tuning(folder, tmp_path):
    policy, prices = tmp_path / "policy.json", ["--prices", folder / "prices.json"]
    tune = ["tune", folder / "train_tokens.csv", "--no-bands", "--task", "choice", "--error-cost", "0.001"]
    succeed(*tune, *prices, "--out", policy)
    stored = succeed("evaluate", policy, folder / "test_tokens.csv", "--json")
    assert stored == succeed("evaluate", policy, folder / "test_tokens.csv", *prices, "--json")
    # A file that names one model alone leaves the others as they were.
    whole = json.loads((folder / "prices.json").read_text()) | {"large": {"input": 0.5, "output": 0.5}}
    for name, content in (("half", {"large": whole["large"]}), ("whole", whole)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    half, changed = (
        succeed("evaluate", policy, folder / "test_tokens.csv", "--prices", tmp_path / f"{name}.json", "--json")
        for name in ("half", "whole")
    )
    assert half == changed != stored
    for name, words in (("half", "which policy is best at these prices?"), ("same", "Next: ")):
        file = folder / "prices.json" if name == "same" else tmp_path / "half.json"
        shown = succeed("evaluate", policy, folder / "test_tokens.csv", "--prices", file)
        assert (words in shown, "prices have changed" in shown) == (True, name == "half")
    assert json.loads(stored)["cost"] == pytest.approx(
        json.loads(succeed("evaluate", policy, folder / "test.csv", "--json"))["cost"]
    )


def single(folder: Path, prices: dict | None) -> Path:
    """The file of a policy that always asks the small model."""
    calibration = rcjax.policy.Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
    rules = {"small": [rcjax.policy.Rule(1.0, "answer")]}
    policy = rcjax.Policy(("small",), {"small": calibration}, rules, {"small": 1e-5}, prices)
    policy.save(folder / "single.json")
    return folder / "single.json"


@pytest.mark.parametrize(("priced", "alone"), [("cost", True), ("stored", False), ("given", False)])
def test_a_single_model_can_be_the_policy(tmp_path, alone, priced):
    rows = [row for row in rows_of(seed=2, n=60) if row[1] == "small" or not alone]
    columns = "cost" if priced == "cost" else "input_tokens,output_tokens"
    log = write_log(tmp_path / "log.csv", rows, f"query,model,logprob,correct,{columns}")
    # Other prices than those given, and none for the models that the policy does not know.
    policy = single(tmp_path, {"small": {"input": TOKEN_PRICES["small"], "output": TOKEN_PRICES["small"]}})
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"small": {"input": 3 * TOKEN_PRICES["small"], "output": 3 * TOKEN_PRICES["small"]}}))
    seen = json.loads(succeed("evaluate", policy, log, "--json", *(["--prices", prices] if priced == "given" else [])))
    small = [row for row in rows if row[1] == "small"]
    assert (seen["n"], seen["models"], seen["share"]) == (60, ["small"], [1.0])
    assert seen["error"] == pytest.approx(1 - np.mean([row[3] for row in small]))
    paid = np.mean([row[4] for row in small]) * (3 if priced == "given" else 1)
    assert seen["cost"] == pytest.approx(paid) == seen["spent"]


def test_tokens_without_prices_are_refused(tmp_path):
    log = write_log(
        tmp_path / "log.csv", rows_of(seed=2, n=60), "query,model,logprob,correct,input_tokens,output_tokens"
    )
    for command in (["evaluate", single(tmp_path, None), log], ["tune", log]):
        assert "token counts but no prices: give --prices prices.toml, for each model a table [MODEL]" in fail(*command)


def test_a_policy_is_refused_on_a_log_without_its_model(tmp_path):
    rows = [row for row in rows_of(seed=2, n=60) if row[1] == "large"]
    refused = fail("evaluate", single(tmp_path, None), write_log(tmp_path / "log.csv", rows))
    assert "no model 'small'" in refused
    assert "; this policy needs a log of small" in refused


def test_an_infeasible_target_names_what_can_be_reached(folder):
    result = run("tune", folder / "train.csv", "--no-bands", "--task", "choice", "--budget", "1e-9", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["error"]["kind"] == "infeasible"
    assert {*document} == {"error"}  # below the cheapest model nothing is fitted
    assert result.stderr == f"error: {document['error']['message']}\n"
    assert result.stderr.startswith("error: no cascade costs $0.00100 per million queries or less")
    assert len(result.stderr.splitlines()) == 1
    cheapest = re.search(r"the cheapest costs \$\S+: give --budget (\S+) or more$", result.stderr.strip())[1]
    enough = ["tune", folder / "train.csv", "--no-bands", "--task", "choice", "--budget", cheapest, "--json"]
    verdict = json.loads(succeed(*enough))["remarks"][0]
    assert verdict.startswith("use small alone")
    assert "no cascade is shown to be better than small alone here" in verdict  # so little more gains nothing
    out = folder / "infeasible.json"
    shown = run("tune", folder / "train.csv", "--no-bands", "--task", "choice", "--max-error", "0.1%", "--out", out)
    assert shown.exit_code == 1
    assert not out.exists()
    assert "written" not in shown.stdout  # it was said of a file that is not there
    assert "frontier" in shown.stdout  # what could be had
    assert shown.stderr.startswith("error: ")
    assert re.search(r"give --max-error [\d.]+% or more\n", shown.stderr)
    assert shown.output.index("error: ") < shown.output.index("each model alone")  # before the long tables


def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    message = fail("tune", tmp_path / "none.csv", "--error-cost", "1", "--out", tmp_path / "nowhere" / "policy.json")
    assert "no folder" in message
    assert "nowhere" in message
    assert "is a folder" in fail("tune", tmp_path / "none.csv", "--error-cost", "1", "--out", tmp_path)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("tune none.csv --error-cost 1 --out {}", "policy"),
        ("tune none.csv --error-cost 1 --frontier {}", "frontier"),
        ("retune none.json none.csv --out {}", "policy"),
        ("report none.csv --out {}", "HTML page"),
        ("import none.eval --out {}", "log"),
        ("serve none.json --models none.toml --log {}", "log of a service"),
    ],
)
@pytest.mark.parametrize(
    "content",
    ["query,answer\nq1,B\n", "[small]\ninput = 1\n", '{"call_log": 1, "call": "c"}\n', "x" * 300_000],
    ids=["labels", "models", "answers", "large"],
)
def test_an_output_replaces_no_file_of_another_kind(line, kind, content, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(content)
    result = run(*line.format(path).split(), "--json")
    assert result.exit_code == 2
    assert (
        f"{path} is there already, and holds no {kind}: give another file"
        in json.loads(result.stdout)["error"]["message"]
    )
    assert path.read_text() == content


def test_an_output_may_replace_an_empty_file_or_one_of_its_kind(tmp_path):
    def require(kind):
        inputs.require_outputs({"--out": path}, {}, {"--out": kind})

    path = tmp_path / "empty"
    path.touch()
    for kind in ("policy", "frontier", "HTML page", "log", "log of a service"):
        require(kind)
    for policy in (make_policy(), Ladder((make_policy(),), 0.0)):
        policy.save(path)
        require("policy")
        path.write_text("\ufeff" + json.dumps(json.loads(path.read_text()), sort_keys=True, indent=1))
        require("policy")
    path.unlink()
    with CallLog(path) as log:
        log.write(call("q1"))
    require("log of a service")
    for suffix in TABLES:
        path = tmp_path / f"log{suffix}"
        write_table(pl.DataFrame({"query": map(str, range(30_000)), "model": "m"}), path)
        require("log")


# -- demo


def test_the_demo_is_marked_as_synthetic():
    shown = succeed("demo", "--queries", "300")
    assert "SYNTHETIC" in shown
    assert max(map(len, shown.splitlines())) <= 80
    document = json.loads(succeed("demo", "--queries", "300", "--json"))
    assert document["synthetic"] is True
    assert len(shown.splitlines()) <= 26
    seen, promised = document["comparison"], document["promised"]
    assert (seen["n_queries"], seen["fresh"], promised["fresh"]) == (10_000, True, False)
    assert seen["rivals"][0]["name"] == document["models"][-1] == document["policy"]["provenance"]["tuning"]["today"]
    assert f"{3e6 * seen['cost']:,.0f} " in shown
    assert "On 300 tuning queries, at 3,000,000 queries a month:" in shown
    assert promised["rivals"][0]["error_difference"] <= 0.01
