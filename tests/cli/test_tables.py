"""What the terminal shows: numbers, cascades in words, lines that fit."""

import pytest

from rcjax._base.wording import describe_cascade, figure
from rcjax.frontier.hull import too_dear

NAMES = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b")


def table(*rules: tuple) -> list[dict]:
    """Rules of one model: (up_to, the model asked or None)."""
    return [{"up_to": end, "action": "ask" if ask else "answer", "model": ask} for end, ask in rules]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3e-5, "0.01"),
        (0.5, "0.50"),
        (0.97, "0.97"),
        (0.994, "0.99"),
        (0.99996, "0.99"),
        (1.0, "1"),
    ],
)
def test_a_threshold_is_told_from_the_ends(value, text):
    rules = {"a": table((value, "b"), (1.0, None)), "b": table((1.0, None))}
    assert describe_cascade({"models": ["a", "b"], "rules": rules}) == f"a >{text} → b"


@pytest.mark.parametrize("width", range(38, 120))
def test_lines_of_rules_keep_to_the_width(width):
    rules = {
        NAMES[0]: table((0.4, NAMES[1]), (0.7, NAMES[2]), (0.85, NAMES[1]), (1.0, None)),
        NAMES[1]: table((1.0, NAMES[2])),
        NAMES[2]: table((1.0, None)),
    }
    text = describe_cascade({"models": NAMES[:3], "rules": rules}, width)
    assert max(map(len, text.split("\n"))) <= width
    first = "llama3.2-1b: ≤0.40 → llama3.1-8b, ≤0.70 → llama3.1-70b, ≤0.85 → llama3.1-8b, else answer"
    assert text.replace("\n  ", " ").split("\n") == [first, "llama3.1-8b: → llama3.1-70b", "llama3.1-70b"]


@pytest.mark.parametrize("cheapest", [1.82154e-5, 1.0000049e-5, 9.99996e-5, 0.314159])
def test_the_cheapest_cost_told_is_a_budget_that_will_do(cheapest):
    scale = 1e6 if cheapest < 0.1 else 1e3
    told = float(too_dear(cheapest / 2, cheapest).rpartition("$")[2])
    assert cheapest <= told / scale <= cheapest * 1.002


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.999, "10.0"),
        (10.04, "10.0"),
        (999.6, "1,000"),
        (0.0009999, "0.00100"),
        (1e-24, "1.00e-24"),
        (1e100, "1.00e+100"),
    ],
)
def test_a_figure_has_three_digits_once_it_is_rounded(value, text):
    assert figure(value) == text
