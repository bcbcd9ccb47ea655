"""The page for a log without labels: what is counted is said everywhere, and both figures where some are labelled."""

import re

import pytest
from reference_logs import write_answers

import rcjax
from rcjax.policy.reference import Reference
from rcjax.report.page import _said, render


def test_texts_of_a_page_are_said_anew_and_scripts_stay():
    page = '<p aria-label="error">an error<b>wrong</b></p><script>error = "wrong"</script><td data-label="error">5</td>'
    said = '<p aria-label="difference">a difference<b>different from large</b></p><script>error = "wrong"</script>'
    assert _said(page, Reference("large")) == f'{said}<td data-label="difference">5</td>'


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = write_answers(tmp_path_factory.mktemp("page") / "log.csv", 384, seed=0, labels=192)
    log = rcjax.read_log(path, reference=Reference("large", counts="differences"))
    return rcjax.make_report(log, replicates=50, max_error=0.12)  # as the report of the other tests, but for labels


@pytest.mark.thorough
def test_a_page_says_what_differs_and_what_is_wrong(page):
    assert "differs from large on" in page.headline()
    assert page.headline().startswith("Asking large for everything costs $")  # that it is itself is no news
    assert "0.0 %" not in page.headline()
    assert re.search(r"differs from large in \d.* errs on \d.* \(large itself \d", page.beside)
    html = render(page)
    assert page.beside in html
    assert "rcjax tune log.csv --reference large" in html
    texts = re.sub(r"<(script|style)\b.*?</\1>", "", html.replace(page.beside, ""), flags=re.DOTALL)
    texts = " ".join(re.sub(r"<[^>]*>", " ", texts).split())
    wrong = re.findall(
        r".{40}(?<!calibration )(?<!standard )(?<!squared )(?<!Calibration )\b(?:wrong|[Ee]rrors?|errs)\b.{30}", texts
    )
    assert wrong == []
    assert page.to_json()["counted"] == "difference"
