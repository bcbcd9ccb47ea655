"""One log and its report, which the tests of the page share, and what is embedded in the page."""

import functools
import json
import re
import shutil

import pytest

import rcjax
from rcjax.report.report import Report

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")


@functools.cache
def halves() -> tuple[rcjax.Log, rcjax.Log]:
    """Two logs of 200 queries; made in float64."""
    return rcjax.sample_log(400, seed=0).select(MODELS).split(0.5, seed=0)


@functools.cache
def report_of_half() -> Report:
    """The report of the first of them."""
    return rcjax.make_report(halves()[0], replicates=50)


def embedded(page: str, name: str = "points"):
    """What a page holds as JSON."""
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)[1])
