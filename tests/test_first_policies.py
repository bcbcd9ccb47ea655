"""The four pages to a first policy, each followed once, as it is written, by somebody with nothing but that page."""

import followed_pages
import pytest
from followed_pages import PAGES, deeds_of, follow, printed_there, words_alone

WORDS = 600


@pytest.fixture(scope="module")
def programs(programs):
    """The folder of compiled programs, kept from one run of the tests to the next if pytest keeps a cache."""
    folder = programs / "commands"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.thorough
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
        assert words_alone(body) == words_alone(printed_there(body, printed)), "run `python tests/followed_pages.py`"


def test_pages_to_a_first_policy_are_short():
    assert [page.name for page in PAGES if len(page.read_text("utf-8").split()) > WORDS] == []
