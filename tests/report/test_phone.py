"""The page on a phone, in print and for those who are no statisticians; the headline and the point below it."""

import re

import numpy as np
import pytest
from helpers.page_samples import in_a_browser

import rcjax
from rcjax.policy.ladder import Period, Queries

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
def test_the_headline_has_the_target_with_its_interval(report, logs):
    budget = 0.5 * float(np.asarray(report.log.cost)[-1])
    how = {"period": Period(500.0, "month"), "queries": Queries(500 / budget, "month")}
    monthly = rcjax.make_report(logs[0], budget=budget, replicates=50, **how)
    bands, rungs = monthly.frontier.bands, monthly.frontier.rung_indices
    costs = np.asarray(monthly.frontier.cost, float)[rungs]
    low, high = (100 * np.interp(budget, costs, ends[rungs]) for ends in np.asarray(bands.error, float).T)
    told = monthly.headline()
    assert f"(90 % interval {low:.1f}–{high:.1f} %" in told
    dear = 500 * monthly.promised.today.cost / budget
    assert re.search(
        rf"it saves \$\d+ ± [\d.]+ of \${dear:,.0f} a month \(\d+ %; at least \$\d+\), at .* than large alone, today's",
        told,
    )
    assert "queries" not in told.replace("of the queries", "")


@pytest.mark.thorough
def test_the_code_to_deploy_is_python(page):
    code = re.search(r"<code>(from rcjax\.policy.*?)</code>", page, re.DOTALL)
    assert code is not None
    compile(code[1].replace("&#34;", '"').replace("&quot;", '"'), "page", "exec")


@pytest.mark.thorough
@in_a_browser
def test_on_a_phone_nothing_is_cut(browser, page, tmp_path):
    (tmp_path / "report.html").write_text(page, "utf-8")
    for width in (390, 768, 1280):
        tab = browser.new_page(viewport={"width": width, "height": 844})
        tab.goto((tmp_path / "report.html").as_uri())
        for summary in tab.locator("summary").all():
            summary.click()
        for name in ("#drawing svg", ".legend"):
            box = tab.locator(name).bounding_box()
            assert box["x"] >= 0, (width, name)
            assert box["x"] + box["width"] <= width, (width, name)
        assert tab.locator(".panel svg").count() >= 1
        wide = "[...document.querySelectorAll('.panel svg')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        assert tab.evaluate(f"{wide}.length") == 0, width
        hidden = "[...document.querySelectorAll('.scroll')].filter(e => e.querySelector('table') && "
        assert tab.evaluate(f"{hidden}e.scrollWidth > e.clientWidth + 1).length") == 0, width
        narrow = "Math.min(...[...document.querySelectorAll('td.wide')].map(e => e.clientWidth))"
        assert tab.evaluate(narrow) > 0.4 * min(width, 700), width
        tab.close()
