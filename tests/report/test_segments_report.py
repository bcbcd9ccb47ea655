"""The report's section on segments."""

import dataclasses

import pytest

import rcjax
from rcjax.report.page import context

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def by_language(float64):
    whole = rcjax.sample_log(400, seed=0).select(MODELS)
    whole = dataclasses.replace(whole, by="language", segment=("de", "<en>") * 200)
    log, test = whole.split(0.5, seed=0)
    return rcjax.make_report(log, test=test, replicates=50, error_cost=0.001)


def test_segments_have_a_section_with_what_they_did_on_fresh_queries(by_language):
    assert by_language.segments is not None
    told = context(by_language)["segments"]
    assert [row["name"] for row in told["rows"]] == ["de", "<en>"]
    for row, figures in zip(told["rows"], by_language.segments.figures, strict=True):
        assert row["queries"] == f"{figures.queries:,}"
        replayed = by_language.segments_replayed[figures.name]
        assert row["fresh_error"].startswith(f"{100 * float(replayed.error):.1f}")
    page = by_language.to_html()
    assert "Segments, by language" in page
    assert "&lt;en&gt;" in page
    assert "<en>" not in page
    assert by_language.to_json()["segments"]["by"] == "language"
