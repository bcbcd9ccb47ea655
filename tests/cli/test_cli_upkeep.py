"""`rcjax check` and `rcjax retune`: exit statuses for scripts, one JSON document, tables, and one line of error."""

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta

import jax
import pytest
from helpers.command_line import run, write_log

import rcjax
from rcjax.logs import read_log
from rcjax.policy.ladder import with_provenance

NAMES = ("small", "large")
N = 200


pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logs of two models, fresh.csv like train.csv and dear.csv at twice the tokens, and policies of train.csv."""
    path = tmp_path_factory.mktemp("upkeep")
    log = rcjax.sample_log(2 * N, seed=4).select(("llama3.2-1b", "llama3.1-70b"))
    logprob, correct, cost = (each.tolist() for each in (log.logprob, log.correct, log.query_cost))
    rows = [
        (i, name, logprob[i][j], int(correct[i][j]), cost[i][j], 0, 0)
        for i in range(2 * N)
        for j, name in enumerate(NAMES)
    ]
    dear = [(*row[:4], 2 * row[4], *row[5:]) for row in rows]
    for name, chosen in (
        ("train", rows[: 2 * N]),
        ("fresh", rows[2 * N :]),
        ("fewer", rows[-80:]),
        ("dear", dear[2 * N :]),
    ):
        write_log(path / f"{name}.csv", chosen)
    with jax.enable_x64(True):
        frontier = rcjax.tuning.select_frontier(read_log(path / "train.csv", task="choice")).frontier
        policy = frontier.policy(error_cost=0.001)
        policy.save(path / "policy.json")
        frontier.save(path / "frontier.json")
        frontier.policy(budget=float(frontier.cost.mean())).save(path / "ladder.json")
        bare = policy.to_json() | {"provenance": {}}
        (path / "bare.json").write_text(json.dumps(bare))
        with_provenance(policy, kept_sample=None).save(path / "alone.json")
    return path


def refused(*arguments, status=2) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), (result.stderr, result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_policy_that_is_still_right_has_status_0(folder):
    result = run("check", folder / "policy.json", folder / "fresh.csv")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stderr == ""
    assert "\nAs expected: the policy errs on " in result.stdout
    for name in ("calibration error", "confidences", "rise of error", "rise of cost", "tuned again"):
        assert name in result.stdout


def test_the_comparison_is_on_the_weeks_that_are_checked(folder, tmp_path):
    first, *rows = (folder / "fresh.csv").read_text().splitlines()
    start = datetime(2026, 1, 5, tzinfo=UTC)
    dated = [f"{row},{(start + timedelta(days=number // 4)).isoformat()}" for number, row in enumerate(rows)]
    log = tmp_path / "dated.csv"
    log.write_text("\n".join([f"{first},time", *dated]) + "\n")  # fourteen weeks
    found = json.loads(run("check", folder / "policy.json", log, "--no-retuning", "--json").stdout)
    assert (found["window"]["weeks"], found["n_queries"], found["comparison"]["n_queries"]) == (8, 112, 112)


def test_evaluate_follows_the_bill_in_the_order_of_time(folder, tmp_path):
    first, *rows = (folder / "fresh.csv").read_text().splitlines()
    dated = [f"{row},{1.7e9 + int(row.split(',')[0])}" for row in rows]
    found = []
    for number, lines in enumerate((dated, dated[::-1])):
        (tmp_path / f"{number}.csv").write_text("\n".join([f"{first},time", *lines]) + "\n")
        result = run("evaluate", folder / "ladder.json", tmp_path / f"{number}.csv", "--json")
        found.append(json.loads(result.stdout)["check"]["followed"])
    assert found[0] == pytest.approx(found[1])


def test_a_drifted_policy_has_status_1_and_comes_with_advice(folder):
    result = run("check", folder / "policy.json", folder / "dear.csv", "--no-retuning")
    assert result.exit_code == 1, (result.stderr, result.exception)
    assert "DRIFTED" in result.stdout
    told = " ".join(result.stdout.split())
    assert "more than the $" in told
    assert "Dearer than expected: the policy costs" in told
    assert told.endswith("whether to tune again, rcjax check says without --no-retuning")


@pytest.mark.parametrize("command", ["check", "evaluate"])
def test_the_first_sentences_have_the_change_from_todays(folder, command):
    shown = " ".join(run(command, folder / "policy.json", folder / "fresh.csv", "--today", "small").stdout.split())
    decision, change, table = (shown.index(text) for text in ("expected", "On these queries it ", "On the same"))
    assert decision < change < table
    assert " than small alone, today's; at worst (95 %) " in shown[change:table]


def test_evaluate_states_the_decision_of_check_and_ends_with_0(folder):
    dear = run("evaluate", folder / "policy.json", folder / "dear.csv")
    assert dear.exit_code == 0
    assert "Dearer than expected" in dear.output
    assert run("evaluate", folder / "policy.json", folder / "fresh.csv").exit_code == 0
    same = run("evaluate", folder / "policy.json", folder / "train.csv")
    assert "No verdict: this is the very log that it was tuned on" in " ".join(same.stdout.split())


@pytest.mark.parametrize("command", ["check", "evaluate"])
def test_queries_that_were_tuned_on_are_left_out_of_the_verdict(folder, tmp_path, command):
    _, *rows = (folder / "fresh.csv").read_text().splitlines()
    grown = tmp_path / "grown.csv"
    grown.write_text("\n".join([(folder / "train.csv").read_text().rstrip(), *rows]) + "\n")
    alone, all_ = (run(command, folder / "policy.json", log, "--json").stdout for log in (folder / "fresh.csv", grown))
    alone, all_ = json.loads(alone), json.loads(all_)
    assert all_["comparison"] == alone["comparison"]
    assert all_.get("check", all_)["error"] == alone.get("check", alone)["error"]
    shown = " ".join(run(command, folder / "policy.json", grown).stdout.split())
    assert "200 of 400 queries were tuned on: left out" in shown


def test_files_without_answers_of_the_policys_models_or_without_times_are_counted(folder, tmp_path):
    header, *rows = (folder / "fresh.csv").read_text().splitlines()
    dated, undated, other = (tmp_path / f"{name}.csv" for name in ("dated", "undated", "other"))
    dated.write_text("\n".join([f"{header},time", *(f"{row},2026-01-05T00:00:00Z" for row in rows[:200])]) + "\n")
    undated.write_text("\n".join([header, *rows[200:]]) + "\n")
    other.write_text(
        "\n".join([header, *(f"o{row}" for row in rows)]).replace("small", "s").replace("large", "l") + "\n"
    )
    result = run("check", folder / "policy.json", dated, undated, "--no-retuning", "--json")
    assert json.loads(result.stdout)["n_queries"] == 100
    assert (
        result.stderr == "warning: dated.csv (2 files): queries are left out: 100 of undated.csv have no time, "
        "unlike others\n"
    )
    assert "other.csv: no answer of " in refused("check", folder / "policy.json", dated, other)


def test_check_prints_one_json_document(folder):
    result = run("check", folder / "policy.json", folder / "dear.csv", "--no-retuning", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["drifted"], found["source"], found["replacement"]) == (True, "dear.csv", None)
    assert {each["verdict"] for each in found["findings"] if each["name"] == "cost"} == {"bad"}
    assert all({*each["limits"]} == {"doubtful", "bad"} for each in found["findings"])


def test_check_has_status_2_for_bad_input(folder):
    assert "absent.json" in refused("check", folder / "absent.json", folder / "fresh.csv")
    assert "absent.csv" in refused("check", folder / "policy.json", folder / "absent.csv")
    assert "the policy comes first, then the log" in refused("check", folder / "fresh.csv", folder / "policy.json")
    assert "must be 'rcjax-policy'" in refused("check", folder / "frontier.json", folder / "fresh.csv")
    assert "all of its queries were tuned on" in refused("check", folder / "policy.json", folder / "train.csv")
    assert "as one made by hand: tune one" in refused("check", folder / "bare.json", folder / "fresh.csv")
    renamed = folder / "renamed.csv"
    renamed.write_text((folder / "fresh.csv").read_text().replace("large", "huge").replace("small", "tiny"))
    assert "no model" in refused("check", folder / "policy.json", renamed)


def test_retune_writes_the_new_policy_and_shows_the_difference(folder, tmp_path):
    line = "retune", folder / "policy.json", folder / "fresh.csv", "--out", tmp_path / "new.json"
    result = run(*line, "--anyway")
    assert result.exit_code == 0, (result.stderr, result.exception)
    new = rcjax.load_policy(tmp_path / "new.json")
    assert new.provenance["source"] == "fresh.csv"
    assert new.provenance["tuning"]["error_cost"] == 0.001
    printed = " ".join(result.stdout.split())
    for text in ("before: ", "after: ", "expected", "by large", "on these and the carried queries", "new.json"):
        assert text in printed
    assert f"tuned on {N} queries of the log and {N} that the policy carries" in printed
    assert run("check", tmp_path / "new.json", folder / "fresh.csv").exit_code == 2  # it was tuned on them


def test_the_decision_says_to_replace_a_policy_far_within_its_limit_by_a_cheaper_one(folder, tmp_path):
    """The cheaper policy was called worse, at the price of an error that the dear one implies."""
    policy = rcjax.load_policy(folder / "ladder.json")
    careful = dataclasses.replace(policy, position=len(policy.rungs) - 1.0, budget=None)
    target = {"budget": None, "max_error": careful.rungs[0].expected["error"]}
    with_provenance(careful, tuning={**policy.provenance["tuning"], **target}).save(tmp_path / "careful.json")
    result = run(
        "retune", tmp_path / "careful.json", folder / "fresh.csv", "--no-bands", "--out", tmp_path / "new.json"
    )
    assert result.exit_code == 0, (result.stderr, result.exception)
    printed = " ".join(result.stdout.split())
    assert re.search(r"Replace the policy\. Before: (as|better than) expected: the policy errs on ", printed)
    assert re.search(r"it saves \d\d\.\d % of the bill, and this policy is within its limit by more", printed)
    assert "the policy stays" not in printed
    assert rcjax.load_policy(tmp_path / "new.json").expected["cost"] < 0.95 * careful.expected["cost"]


def retune(folder, log, *options):
    return run("retune", folder / "policy.json", folder / log, "--no-bands", *options)


@pytest.mark.thorough
def test_a_policy_that_gains_too_little_is_shown_and_not_written(folder, tmp_path):
    out = tmp_path / "new.json"
    result = retune(folder, "fresh.csv", "--out", out)
    assert (result.exit_code, result.stderr, out.exists()) == (0, "", False)
    printed = " ".join(result.stdout.split())
    assert "a policy tuned again on these and the carried queries, replayed on them: $" in printed
    assert ", and 0.5 replace a policy: the policy stays" in printed
    assert "nothing is written, as said above: --anyway writes the new policy all the same" in printed
    assert "Policy written" not in result.stdout
    assert "Next: keep the policy;" in result.stdout
    document = json.loads(retune(folder, "fresh.csv", "--out", out, "--json").stdout)
    assert ("error" in document, "written" in document, out.exists()) == (False, False, False)
    assert retune(folder, "fresh.csv", "--out", out, "--anyway").exit_code == 0
    assert out.exists()


def test_retune_writes_no_policy_that_cannot_be_tested(folder, tmp_path):
    out = tmp_path / "new.json"
    line = "retune", folder / "alone.json", folder / "fewer.csv", "--no-bands", "--out", out
    result = run(*line)
    assert (result.exit_code, out.exists()) == (1, False)
    assert result.stderr.count("was not tested: fewer than 50 queries have the answers of all models") == 1
    assert "was not tested" not in result.stdout
    assert "--anyway" in result.stderr
    assert run(*line, "--anyway").exit_code == 0
    assert retune(folder, "fewer.csv", "--out", out).exit_code == 0  # with the queries that the policy carries


def test_retune_gives_the_verdict_of_check_on_a_log_of_ten_weeks(folder, tmp_path):
    head, *lines = (folder / "fresh.csv").read_text().splitlines()
    days = (f"2026-{9 + day // 30:02}-{1 + day % 30:02}" for day in (70 * i // len(lines) for i in range(len(lines))))
    timed = [f"{line},{day}T12:00:00Z" for line, day in zip(lines, days, strict=True)]
    (tmp_path / "weeks.csv").write_text("\n".join((f"{head},time", *timed)) + "\n")
    line = folder / "policy.json", tmp_path / "weeks.csv", "--json"
    checked, retuned = (json.loads(run(name, *line).stdout) for name in ("check", "retune"))
    assert checked["window"]["earlier"] > 0
    for name in ("window", "decision", "replacement"):
        assert retuned["check"][name] == checked[name]
