"""The page on a phone, in print and for those who are no statisticians; the headline and the point below it."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from page_samples import in_a_browser

from rcjax.policy.ladder import Period
from rcjax.policy.spec import Spec

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
def test_the_page_starts_with_no_point_that_is_worse_than_it_need_be(report):
    """The cheapest as good as today's model; where each errs more, that which errs least."""
    error = np.asarray(report.frontier.error, float)
    assert report.expected["error"] <= report.against.error + 1e-9
    worse = dataclasses.replace(report, frontier=dataclasses.replace(report.frontier, error=jnp.asarray(error + 0.5)))
    assert worse.start == worse.target_of(int(error.argmin()))


@pytest.mark.thorough
def test_the_headline_tells_of_the_target_with_its_interval(report):
    bands = report.frontier.bands
    budget = 0.5 * float(np.asarray(report.log.cost)[-1])
    aimed = dataclasses.replace(report, spec=Spec(budget=budget))
    rising = np.asarray(report.frontier.cost, float)[::-1]
    low, high = (100 * np.interp(budget, rising, ends[::-1]) for ends in np.asarray(bands.error, float).T)
    told = aimed.headline().split("The policy for your target, at most $")[1]
    assert f"(90 % interval {low:.1f}–{high:.1f} %" in told
    beside = r": \d+ % of the cost of large, \d+\.\d points (more|less) error(; \w+, the best single model .*)?\.$"
    assert re.search(beside, told)
    monthly = dataclasses.replace(report, spec=Spec(budget=budget, period=Period(500.0, "month"))).headline()
    dear = 500 * report.against.cost / budget
    assert f"at ${dear:,.0f} a month. The policy for your target, at most $500 a month, errs" in monthly
    assert ", at $500: " in monthly
    assert "queries" not in monthly


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
