"""The log, its report and its page, made once for all tests of the page that a worker has."""

import pytest
from page_samples import halves, report_of_half


@pytest.fixture(scope="module")
def logs(float64):
    return halves()


@pytest.fixture(scope="module")
def report(float64):
    return report_of_half()


@pytest.fixture(scope="module")
def page(report):
    return report.to_html()
