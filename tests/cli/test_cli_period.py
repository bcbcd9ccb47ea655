"""`rcjax tune` for money of a period, and for a position that is kept: what it writes, refuses, and `retune` keeps."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from call_samples import call, write
from command_line import rows_of, run, write_log

from rcjax.cli.options import spread
from rcjax.policy import load_policy
from rcjax.policy.following import Period, PeriodBill
from rcjax.serving.call_log import Billed

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("period")
    for name, seed in (("log", 0), ("fresh", 1)):
        write_log(path / f"{name}.csv", rows_of(seed))
    return path


def test_money_for_a_month_is_in_the_file_and_stays_in_it(folder):
    log, out = folder / "log.csv", folder / "policy.json"
    tune = ("tune", log, "--task", "choice", "--no-bands", "--budget")
    result = run(*tune, "$70/Month", "--queries", "1e6/month", "--out", out)
    assert "it follows the bill of $70 a month (UTC)" in " ".join(result.stdout.split()), result.stderr
    assert load_policy(out).period == Period(70.0, "month")
    assert load_policy(out).budget == pytest.approx(7e-5)
    assert isinstance(load_policy(out).new_bill(0.0), PeriodBill)
    document = json.loads(run(*tune, "7e-5", "--no-follow", "--out", out, "--json").stdout)["policy"]
    assert (document["budget"], document["follows"], document["period"]) == (7e-5, False, None)
    assert load_policy(out).new_bill(0.0) is None
    before = load_policy(out)
    run("retune", out, folder / "fresh.csv", "--out", out, "--no-bands", "--anyway")
    after = load_policy(out)
    assert after != before
    assert (after.budget, after.follows) == (7e-5, False)


def test_what_does_not_go_together_is_told(folder):
    for line, said in {
        ("--budget", "70/month"): "--queries: is missing: say how many queries come, such as 200000/month",
        ("--budget", "70/M", "--queries", "5/day"): "--queries: goes with money for a period",
        ("--budget", "70/day", "--queries", "5"): "give queries and a period, such as 200000/month",
        ("--budget", "0/week", "--queries", "5/day"): "'0' is not above 0",
        ("--budget", "70/year"): "is no sum of money",
        ("--max-error", "20%", "--no-follow"): "--no-follow: needs --budget",
    }.items():
        result = run("tune", folder / "log.csv", *line)
        assert (result.exit_code, said in " ".join(result.stderr.replace("│", " ").split())) == (2, True), line


def test_the_queries_of_a_service_are_counted_in_its_log(tmp_path):
    """300 a day, of which two in three were asked of two models."""
    path = tmp_path / "calls.jsonl"
    times = [datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=i / 300) for i in range(601)]
    calls = [call(i, "small", time=time.isoformat(), billed=Billed("policy", "a")) for i, time in enumerate(times)]
    write(path, *calls, *(replace(one, billed=Billed("policy", "a", 2)) for i, one in enumerate(calls) if i % 3))
    period = Period(3.0, "day")
    assert spread(period, None, path) == (pytest.approx(0.01), period)
