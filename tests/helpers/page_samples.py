"""One log and its report, which the tests of the page share, and what is embedded in the page."""

import functools
import json
import re
import shutil

import polars as pl
import pytest

import rcjax
from helpers.command_line import rows_of
from rcjax.policy.spec import Target
from rcjax.report import Report

MODELS = ("small", "middle", "large")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")


@functools.cache
def halves() -> tuple[rcjax.Log, rcjax.Log]:
    """Two logs, of as many queries and models as those of the command line; made in float64."""
    columns = ["query", "model", "logprob", "correct", "cost", "input_tokens", "output_tokens"]
    tables = [pl.DataFrame(rows_of(seed), columns, orient="row") for seed in (1, 0)]
    first, second = (rcjax.read_log(table.drop("input_tokens", "output_tokens")) for table in tables)
    return first, second


@functools.cache
def report_of_half() -> Report:
    """The report of the first of them, of as many replicates as the command makes: one programme serves both."""
    return rcjax.make_report(halves()[0])


@functools.cache
def page_of_half() -> str:
    """The page of that report."""
    return report_of_half().to_html()


def embedded(page: str, name: str = "points"):
    """Return the JSON that a page holds."""
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)[1])


def policy_for(report: Report, option: str):
    """The policy for a target that is written as an option of the command."""
    name, value, *_ = option.removeprefix("--").split(" ")
    if name == "match":
        return report.policy
    amount = float(value.removesuffix("/M")) / (1e6 if value.endswith("/M") else 1)
    return report.tuned.policy_for(Target(name.replace("-", "_"), amount))
