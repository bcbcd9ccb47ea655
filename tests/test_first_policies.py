"""The three pages to a first policy, each followed once, as it is written, by somebody with nothing but that page."""

import re

import followed_pages
import pytest
from followed_pages import PAGES, deeds_of, ending, follow

WORDS = 600


def words_alone(text):
    """Without figures, which hang on versions and machines a little, and the widths of columns that hang on them."""
    return re.sub(r"[─\s]+", " ", re.sub(r"[\d.,]*\d", "#", text)).strip()


@pytest.fixture(scope="module")
def programs(request):
    """What commands compile, kept from one run of the tests to the next."""
    return request.config.cache.mkdir("rcjax-commands")


@pytest.mark.parametrize(
    "page",
    [PAGES[0], *(pytest.param(page, marks=pytest.mark.thorough) for page in PAGES[1:])],
    ids=lambda page: page.stem,
)
def test_a_page_leads_to_a_policy(page, tmp_path, programs):
    with followed_pages.reader(tmp_path, programs) as one:
        shown = follow(page, one, deeds_of(page))
    assert (tmp_path / "policy.json").exists()
    assert shown
    for body, printed in shown:
        assert words_alone(body) == words_alone(ending(body, printed)), "run `python tests/followed_pages.py`"


def test_they_are_short():
    assert {page.name: len(page.read_text("utf-8").split()) for page in PAGES if page.read_text("utf-8")} == {
        page.name: pytest.approx(WORDS / 2, abs=WORDS / 2) for page in PAGES
    }
