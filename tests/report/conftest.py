"""The log, its report, its page and a browser, made once for the tests of a module."""

import pytest
from helpers.page_samples import CHROMIUM, halves, page_of_half, report_of_half


@pytest.fixture(scope="module")
def logs(float64):
    return halves()


@pytest.fixture(scope="module")
def report(float64):
    return report_of_half()


@pytest.fixture(scope="module")
def page(float64):
    return page_of_half()


@pytest.fixture(scope="module")
def browser():
    """While it runs, an event loop does, too, beside which no other test could run one of its own."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield running
        running.close()
