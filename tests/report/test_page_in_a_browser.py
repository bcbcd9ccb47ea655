"""The page in a browser: what people see, click and download."""

import pytest
from helpers.page_samples import embedded, in_a_browser

import rcjax
from rcjax.report.page import _policies

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]


@pytest.fixture
def opened(browser, page, tmp_path):
    """A function that opens the page from disk; afterwards there was no request, and no error."""
    (tmp_path / "report.html").write_text(page, "utf-8")
    troubles = []

    def start(**options):
        tab = browser.new_page(**options)
        tab.on("console", lambda message: troubles.append(message.text))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("request", lambda request: troubles.append(request.url) if request.url != url else None)
        tab.goto(url)
        return tab

    url = (tmp_path / "report.html").as_uri()
    yield start
    assert [each for each in troubles if not each.startswith("blob:")] == []


def shown(tab):
    return {name: tab.inner_text(f"#{name}") for name in ("error", "cost", "members", "advice", "target")}


@in_a_browser
def test_a_click_picks_the_policy_there(opened, page):
    tab, points = opened(viewport={"width": 1280, "height": 900}), embedded(page)
    before = shown(tab)
    for index in (0, len(points) // 3, len(points) - 1):
        box = tab.locator("#drawing svg").bounding_box()
        width = tab.evaluate("document.querySelector('#drawing svg').viewBox.baseVal.width")
        scale = box["width"] / width
        tab.mouse.click(box["x"] + points[index]["x"] * scale, box["y"] + points[index]["y"] * scale)
        after = shown(tab)
        assert (after["error"], after["cost"]) == (points[index]["error"], points[index]["cost"])
        assert all(text in after["members"] for row in points[index]["rows"] for text in row.values())
    assert after != before


@in_a_browser
def test_keys_move_along_the_curve(opened, page):
    tab, points = opened(), embedded(page)
    tab.focus("#slider")
    tab.keyboard.press("Home")
    assert tab.inner_text("#cost") == points[-1]["cost"]
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#cost") == points[-2]["cost"]
    assert points[-2]["cascade"] in tab.get_attribute("#slider", "aria-valuetext")
    tab.keyboard.press("End")
    assert tab.inner_text("#cost") == points[0]["cost"]


@in_a_browser
def test_the_policy_that_is_downloaded_is_the_one_shown(opened, report, tmp_path):
    tab = opened()
    tab.focus("#slider")
    tab.keyboard.press("Home")
    with tab.expect_download() as found:
        tab.click("#download")
    found.value.save_as(tmp_path / "policy.json")
    assert rcjax.load_policy(tmp_path / "policy.json") == _policies(report)[-1][1]


@in_a_browser
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.thorough),
        pytest.param(390, "light", marks=pytest.mark.thorough),
    ],
)
def test_the_page_is_accessible(opened, width, scheme):
    """What axe finds wrong: nothing. And nothing but what is meant to scrolls sideways."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = opened(viewport={"width": width, "height": 844}, color_scheme=scheme)
    for each in tab.locator("summary").all():
        each.click()
    found = axe.run(tab).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:90]) for each in found] == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
