"""A policy beside today's: what sentences and tables say, and that they never contradict the figures."""

import itertools
import json
import re

import pytest

from rcjax._base.codec import read_value, to_json_value
from rcjax._base.figures import Money
from rcjax.policy import Calibration, Ladder, Policy, Rule
from rcjax.policy.comparison import Comparison, Rival, UnsupportedGain, advise, describe_rungs, recorded_comparison
from rcjax.policy.decisions import Agreement

MONTH, MILLION = Money(1e8, "month"), Money(1e6, "million")


def beside(more=0.003, se=0.006, cost=5e-5, today=2e-4, **rest):
    rival = Rival("large", "today", error=0.12, cost=today, error_difference=more, se=se)
    return Comparison(0.12 + more, cost, 300, rest.pop("fresh", False), (rival,), **rest)


SENTENCES = [
    ({}, "saves $15,000 of $20,000 a month (75 %), at 0.3 ± 0.6 points more error than large alone, today's"),
    ({"cost": 3e-4}, "costs $10,000 more than $20,000 a month (50 %), at 0.3 ± 0.6 points more error than "),
    ({"cost": 2e-4}, "costs the same, $20,000 a month, at 0.3 ± 0.6 points more error than large alone, today's"),
    ({"more": -0.02}, "saves $15,000 of $20,000 a month (75 %), at 2.0 ± 0.6 points less error than large alone"),
    ({"more": 0.0, "se": 0.0, "cost": 2e-4}, "costs $20,000 a month as before"),
    ({"cost": 0.0, "today": 0.0}, "costs the same, $0 a month, at "),
    ({"today": 0.0}, "costs $5,000 more than $0 a month, at "),
]


@pytest.mark.parametrize(("figures", "sentence"), SENTENCES)
def test_the_headline_says_what_changes_in_money_and_in_error(figures, sentence):
    assert beside(**figures).headline(MONTH).startswith(sentence)


def test_the_headline_ends_with_a_gain_that_is_not_supported():
    unsupported_gain = UnsupportedGain("large", expected=0.004, held_out=-0.02, se=0.01)
    said = beside(more=-0.004, unsupported_gain=unsupported_gain).headline(MONTH)
    assert said.startswith(beside(more=-0.004).headline(MONTH))
    assert said.endswith("the best is expected to gain 0.4 points of error, -2.0 ± 1.0 on queries left out")


def test_more_and_less_follow_the_sign_of_the_figures():
    for more, cost in itertools.product((-0.3, -0.004, 0.004, 0.3), (1e-6, 1e-4, 3e-4)):
        said = beside(more=more, cost=cost).headline(MILLION)
        told = re.search(r"([\d.]+) ± 0\.6 points (more|less) error", said)
        assert float(told[1]) == pytest.approx(100 * abs(more), abs=0.051)
        assert (told[2] == "more") == (more > 0)
        assert said.startswith("saves" if cost < 2e-4 else "costs")


def test_the_table_has_the_figures_of_the_headline():
    rows = beside(more=-0.02).rows(MONTH)
    assert rows == [
        ("this policy", "5,000", "10.0 %", ""),
        ("large alone, today's", "20,000", "12.0 %", "2.0 ± 0.6 more"),
    ]


def test_a_comparison_comes_back_from_its_json():
    comparison = beside(error_cost=0.0112, unsupported_gain=UnsupportedGain("large", 0.004, -0.02, 0.01))
    data = json.loads(json.dumps(to_json_value(comparison)))
    assert read_value(Comparison, data, "") == comparison == recorded_comparison({"comparison": data})
    assert recorded_comparison({}) is None
    with pytest.raises(ValueError, match=r"provenance\.comparison\.rivals\[0\]\.se: must be between 0"):
        recorded_comparison({"comparison": data | {"rivals": [data["rivals"][0] | {"se": -1}]}})


def rung(names, cost, **more):
    plain = Calibration("none", 0.0, 1.0, -9.0, 0.0)
    asks = {name: [Rule(0.5, "ask", after), Rule(1, "answer")] for name, after in itertools.pairwise(names)}
    how = {"calibrations": dict.fromkeys(names, plain), "rules": asks | {names[-1]: [Rule(1, "answer")]}}
    return Policy(names, cost=dict.fromkeys(names, 1e-5), expected={"error": 0.1, "cost": cost}, **how, **more)


def test_rungs_are_named_with_their_shares():
    cheap, dear = rung(("small", "large"), 1e-5), rung(("large",), 2e-5)
    assert describe_rungs(cheap) == "small → large"
    both = "small → large for 75 % of the queries and large alone for the others"
    assert describe_rungs(Ladder((cheap, dear), 0.25)) == both
    assert describe_rungs(Ladder((cheap, dear), 0.9998)) == "large alone"  # and not "for 100 % of the queries"
    assert describe_rungs(Ladder((cheap, dear), 0.003)).startswith("small → large for 99.7 % of the queries and ")
    votes = rung(("small", "middle", "large"), 3e-5, agreements={"middle": Agreement("small", "large")})
    assert describe_rungs(votes) == "small and middle, and large where they differ"
    twice = {"middle": Agreement("small", "large"), "large": Agreement("middle", "huge")}
    twice = rung(("small", "middle", "large", "huge"), 3e-5, agreements=twice)
    first, second = "small and middle, and large where they differ", "middle and large, and huge where they differ"
    assert describe_rungs(twice) == f"{first}, then {second}"
    by_part = rung(("small", "large"), 1.5e-5, segments={"maths": {"models": ["large"], "rules": dear.rules}})
    assert describe_rungs(by_part) == "cascades by segment"
    said = advise(cheap, beside(fresh=True), MONTH)
    assert said.startswith("use small → large: on 300 fresh queries it saves $15,000 of")
    assert advise(dear, beside(0.0, 0.0, 2e-4), MONTH) == "keep large alone: it costs $20,000 a month as before"
    for more, cost, fresh, verb in (
        (0.003, 3e-4, True, "do not use"),
        (0.003, 3e-4, False, "use"),
        (0.003, 1e-4, True, "use"),
        (-0.003, 3e-4, True, "use"),
    ):
        assert advise(cheap, beside(more, cost=cost, fresh=fresh), MONTH).startswith(f"{verb} small → large: ")
    for more, fresh, verb in ((0.04, True, "do not use"), (0.04, False, "use"), (0.015, True, "use")):
        said = advise(cheap, beside(more, fresh=fresh), MONTH, margin=0.01)
        assert said.startswith(f"{verb} small → large: "), more
