"""`rcjax tune` for money of a period, and for a position that is kept: what it writes, refuses, and `retune` keeps."""

import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from helpers.call_samples import call, vary, write
from helpers.command_line import rows_of, run, write_log

from rcjax.cli.inputs import with_budget_per_query
from rcjax.cli.options import BudgetOptions
from rcjax.policy import load_policy
from rcjax.policy.bills import new_bill
from rcjax.policy.ladder import Period, with_following
from rcjax.policy.spec import Spec
from rcjax.serving.call_log import Charge
from rcjax.serving.shadow import queries_per_day

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("period")
    for name, seed in (("log", 0), ("fresh", 1)):
        write_log(path / f"{name}.csv", rows_of(seed))
    return path


@pytest.fixture(scope="module")
def calls(folder):
    """The log of a service: 300 queries a day, of which two in three were asked of two models."""
    path = folder / "calls.jsonl"
    times = [datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=i / 300) for i in range(601)]
    calls = [call(i, "small", time=time.isoformat(), charge=Charge("policy")) for i, time in enumerate(times)]
    write(path, *calls, *(vary(one, charge=Charge("policy", 2)) for i, one in enumerate(calls) if i % 3))
    return path


def test_money_for_a_month_is_in_the_file_and_retune_keeps_it(folder, calls):
    out = folder / "policy.json"
    options = ("--budget", "$70/Month", "--queries", "1e6/month", "--no-bands", "--out", out)
    result = run("tune", folder / "log.csv", "--task", "choice", *options)
    shown = " ".join(result.stdout.split())
    assert "Policy for your target (at most $70 a month)" in shown, result.stderr
    assert "a service keeps to $70 a month (UTC), for 1,000,000 queries a month" in shown
    clause = (
        r"it saves \$([\d,.]+) ± [\d.]+ of \$([\d,.]+) a month \(\d+ %; at least \$[\d.]+\), at .* than large alone"
    )
    saves = re.search(clause, shown)
    saved, before = (float(number.replace(",", "")) for number in saves.groups())
    assert before - saved == pytest.approx(70, rel=0.02)
    too_little = ("--budget", "$1/month", "--queries", "1e6/month", "--no-bands")
    least = re.search(r"give --budget (\S+/month) or more", run("tune", folder / "log.csv", *too_little).stderr)[1]
    enough = run("tune", folder / "log.csv", "--budget", least, "--queries", "1e6/month", "--no-bands")
    assert enough.exit_code == 0, enough.stderr
    follows, (told,) = with_budget_per_query(load_policy(out), folder / "fresh.csv")  # no log of a service
    assert (follows.budget, told.endswith("32,854 queries a day that it was tuned for")) == (pytest.approx(7e-5), True)
    follows, (told,) = with_budget_per_query(load_policy(out), calls)
    assert follows.budget == pytest.approx(70 / (300 * 365.25 / 12))
    assert told.endswith("at the 300 queries a day of this log")
    before = with_following(load_policy(out), follows=False, period=Period(70.0, "month"))
    before.save(out)
    run("retune", out, folder / "fresh.csv", "--out", out, "--no-bands", "--anyway")
    after = load_policy(out)
    assert after != before
    for policy in (before, after):
        assert (policy.period, policy.follows, new_bill(policy, 0.0)) == (Period(70.0, "month"), False, None)
        assert policy.budget == pytest.approx(7e-5)
        assert new_bill(with_following(policy, follows=True, period=policy.period), 0.0).money_left(0.0) == 70.0


def test_options_that_do_not_go_together_are_refused(folder):
    for line, said in {
        ("--budget", "70/month"): "--queries: is missing: say how many queries come, such as --queries 200000/month",
        ("--budget", "70/day", "--queries", "5"): "give queries and a period, such as 200000/month",
        ("--budget", "0/week", "--queries", "5/day"): "'0' is not above 0",
        ("--budget", "70/year"): "is not a sum of money",
    }.items():
        result = run("tune", folder / "log.csv", *line)
        assert (result.exit_code, said in " ".join(result.stderr.replace("│", " ").split())) == (2, True), line


def test_the_queries_of_a_service_are_counted_in_its_log(calls):
    period = Period(3.0, "day")
    spec = BudgetOptions(period).add_to(Spec(), calls)
    assert (spec.budget, spec.period) == (pytest.approx(0.01), period)


def test_logs_of_several_replicas_are_tuned_on_as_one(folder, tmp_path):
    rows = rows_of(0)
    place = len(rows) // 2 // 3 * 3
    for name, part in (("a", rows[:place]), ("b", rows[place:])):
        write_log(tmp_path / f"calls-{name}.csv", part)
    options = ("--task", "choice", "--budget", "70/M", "--no-bands", "--json")
    whole = run("tune", folder / "log.csv", *options)
    for logs in ([tmp_path], sorted(tmp_path.iterdir())):
        told = run("tune", *logs, *options)
        policies = [json.loads(one.stdout)["policy"] for one in (told, whole)]
        assert policies[0].pop("provenance")["digest"] == policies[1].pop("provenance")["digest"], told.stderr
        assert policies[0] == policies[1]


def test_queries_of_several_replicas_are_counted_together_each_once(calls, tmp_path):
    shutil.copy(calls, tmp_path / "calls-a.jsonl")
    shutil.copy(calls, tmp_path / "calls-b.jsonl")
    os.link(calls, tmp_path / "calls-a.jsonl.1")  # beside a log, as its past, and in the folder: one file of its own
    assert queries_per_day(calls) == pytest.approx(300)
    assert queries_per_day(tmp_path / "calls-a.jsonl", tmp_path / "calls-b.jsonl") == pytest.approx(901)
    assert queries_per_day(tmp_path) == pytest.approx(901)
