"""A policy beside today's: what sentences and tables say, and that they never contradict the figures."""

import itertools
import json
import re
from dataclasses import replace

import pytest

from rcjax._base.codec import read_value, to_json_value
from rcjax._base.figures import Money
from rcjax.policy import Answer, Calibration, Defer, Ladder, Policy, Rule
from rcjax.policy.comparison import (
    IN_SERVICE,
    Comparison,
    Rival,
    UnsupportedGain,
    advise,
    describe_rungs,
    recorded_comparison,
)
from rcjax.policy.decisions import Agreement
from rcjax.policy.error_kind import ERRORS, Reference, Scores

MONTH, MILLION = Money(1e8, "month"), Money(1e6, "million")


def beside(more=0.003, se=0.006, cost=5e-5, today=2e-4, **rest):
    rival = Rival("large", "today", error=0.12, cost=today, error_difference=more, se=se)
    return Comparison(0.12 + more, cost, 300, rest.pop("fresh", False), (rival,), **rest)


MORE = "at 0.3 ± 0.6 points more error (300,000 more wrong answers a month) than large alone, today's"
SENTENCES = [
    ({}, f"saves $15,000 of $20,000 a month (75 %), {MORE}"),
    ({"cost": 3e-4}, f"costs $30,000 instead of $20,000 a month, {MORE}"),
    ({"cost": 2e-4}, f"costs the same, $20,000 a month, {MORE}"),
    ({"more": -0.02}, "saves $15,000 of $20,000 a month (75 %), at 2.0 ± 0.6 points less error (2,000,000 fewer wrong"),
    (
        {"more": -4e-4},
        "saves $15,000 of $20,000 a month (75 %), at the same error (± 0.6 points) as large alone, today's",
    ),
    (
        {"is_today_default": True, "fresh": True},
        f"saves $15,000 of $20,000 a month (75 %), {MORE} (assumed: give --today); at",
    ),
    ({"more": 0.0, "se": 0.0, "cost": 2e-4}, "costs $20,000 a month as before"),
    ({"cost": 0.0, "today": 0.0}, "costs the same, $0 a month, at "),
    ({"today": 0.0}, "costs $5,000 instead of $0 a month, at "),
]


@pytest.mark.parametrize(("figures", "sentence"), SENTENCES)
def test_the_headline_says_what_changes_in_money_and_in_error(figures, sentence):
    assert beside(**figures).headline(MONTH).startswith(sentence)


def test_the_headline_ends_with_a_gain_that_is_not_supported():
    unsupported_gain = UnsupportedGain("large", expected=0.004, held_out=-0.02, se=0.01)
    said = beside(more=-0.004, unsupported_gain=unsupported_gain).headline(MONTH)
    assert said.startswith(beside(more=-0.004).headline(MONTH))
    assert said.endswith("large alone here: on queries left out the best lost 2.0 ± 1.0 points of error")
    small = replace(unsupported_gain, expected=0.0, held_out=0.005).describe("points of error")
    assert small.endswith("large alone here: the best is expected to gain less than 0.1 points of error")


def test_the_headline_says_the_worst_case_and_once_that_todays_is_assumed():
    for more, fresh, worst in (
        (0.003, True, "1.3 points more"),
        (-0.02, True, "1.0 points less"),
        (-0.0098, True, "the same"),
        (0.003, False, "1.1 points more"),
        (-0.02, False, "1.0 points less"),
        (-0.008, False, "0.8 points more, as a gain that is not shown does not count"),
        (-0.0004, False, "0.8 points more"),  # the same error, as printed
        (-0.008, True, "0.2 points more"),
    ):
        how = "95 %" if fresh else "in 9 logs of 10"
        said = beside(more, fresh=fresh).headline(MILLION)
        assert said.endswith(f"large alone, today's; at worst ({how}) {worst}")
    assert replace(beside(0.003, fresh=True), n_queries=19).headline(MILLION).endswith("large alone, today's")
    said = beside(is_today_default=True).headline(MONTH)
    assert "large alone, today's (assumed: give --today); at worst (in 9 logs of 10)" in said
    assert beside(0.0, 0.0, 2e-4, is_today_default=True).headline(MONTH).endswith("as before (assumed: give --today)")


def test_errors_are_counted_for_the_period_of_the_money():
    said = beside(0.0032, 0.0035, fresh=True).headline(Money(2e6, "month"))
    assert said.startswith(
        "saves $300 of $400 a month (75 %), at 0.3 ± 0.4 points more error (6,400 more wrong answers "
    )
    assert said.endswith("a month) than large alone, today's; at worst (95 %) 0.9 points more (18,000)")
    assert "(40,000 fewer wrong answers a month)" in beside(-0.02).headline(Money(2e6, "month"))
    assert "wrong answers" not in beside().headline(MILLION)
    for not_counted in ({"abstain_price": 0.3}, {}):
        counted = ERRORS if not_counted else Scores().error_kind
        assert "00)" not in beside(**not_counted).headline(Money(2e6, "month"), counted)
    assert "600,000 more different answers a month" in beside(0.006).headline(MONTH, Reference("large").error_kind)


def test_the_saving_is_the_difference_of_the_printed_bills_with_its_standard_error():
    dear = Rival("large", "today", 0.12, 1.6316e-3, 0.003, 0.006, saving_se=2.31e-5)
    comparison = Comparison(0.123, 9.064e-4, 300, True, (dear,))
    assert comparison.headline(Money(1e6, "month")).startswith(
        "saves $726 ± 23 of $1,632 a month (44 %; at least $687), at 0.3 "
    )
    unsure = replace(comparison, rivals=(replace(dear, saving_se=5e-4),)).headline(Money(1e6, "month"))
    assert unsure.startswith("saves $726 ± 500 of $1,632 a month (44 %), at 0.3 ")
    row = comparison.to_json()["rivals"][0]
    assert row["saving"] == pytest.approx(7.252e-4)
    assert row["saving_interval"] == pytest.approx([7.252e-4 - 1.645 * 2.31e-5, 7.252e-4 + 1.645 * 2.31e-5])
    assert row["error_difference_upper"] == pytest.approx(0.003 + 1.645 * 0.006)
    assert read_value(Comparison, comparison.to_json(), "") == comparison


def test_a_cascade_that_gains_nothing_is_not_advised():
    single = Rival("middle", "single", error=0.125, cost=5e-5, error_difference=-0.005, se=0.005)
    cheap = rung(("small", "large"), 1e-5)
    as_well = "by estimate it does as well within chance, for no more money"
    saves = "small → large would save only $800 of $20,000 a month (4 %), at "
    in_service = replace(beside().rivals[0], name=IN_SERVICE)
    for comparison, advice in (
        (beside(), "use small → large: "),
        (
            replace(beside(), rivals=(*beside().rivals, single)),
            f"use middle alone: {as_well}, and is simpler; small → ",
        ),
        (replace(beside(), rivals=(*beside().rivals, replace(single, se=0.002))), "use small → large: "),
        (
            replace(beside(), rivals=(*beside().rivals, replace(single, error_difference=-0.02, se=0.02))),
            "use small → ",
        ),
        (replace(beside(fresh=True), rivals=(*beside().rivals, single)), "use small → large: "),
        (beside(cost=1.92e-4), f"keep large alone: by estimate {saves}"),
        (beside(-0.02, cost=1.92e-4), "use small → large: "),
        (beside(-0.002, cost=2e-4), f"keep large alone: {as_well}, and is simpler; small → large would cost the same"),
        (
            replace(beside(), rivals=(replace(in_service, cost=4e-5),)),
            f"keep the policy in service: {as_well}; small → large would cost $5,000 instead of $4,000 a month, at ",
        ),
        (
            replace(beside(cost=1.92e-4), rivals=(in_service,)),
            f"keep the policy in service: by estimate {saves}",
        ),
    ):
        assert advise(cheap, comparison, MONTH).startswith(advice)
    assert advise(rung(("small",), 1e-5), beside(cost=1.92e-4), MONTH).startswith("use small alone: ")


def test_a_policy_that_saves_and_errs_more_has_a_price_of_an_error_up_to_which_it_pays():
    said = [
        compared.describe_error_costs()
        for compared in (
            beside(next_error_cost=2.0),
            replace(beside(), fresh=True),
            beside(-0.003, next_error_cost=2.0),
            beside(cost=3e-4, next_error_cost=2.0),
            beside(-0.003),
        )
    ]
    spread = [
        replace(beside(), rivals=(replace(beside().rivals[0], saving_se=se),)).describe_error_costs()
        for se in (1e-5, 1e-4)
    ]
    pays = "it pays if one error costs less than $0.0500 (at worst, "
    assert spread == [f"{pays}${(1.5e-4 - 1.645e-5) / (0.003 + 1.2816 * 0.006):.4f})", f"{pays}it saves nothing)"]
    pays += "$"
    stricter = "a stricter policy would pay $2.00 for each error that it avoids"
    assert said == [f"{pays}0.0140)", f"{pays}0.0117)", stricter, stricter, None]


def test_the_error_on_the_queries_tuned_on_is_said_wherever_it_is_not_the_estimate():
    compared = beside(0.053)  # an error of 17.3 %
    said = [replace(compared, replayed_error=error).describe_optimism() for error in (0.165, 0.1732, 0.179, None)]
    flatters = "on these queries it errs on 16.5 %, but was chosen on them"
    worse = "on these queries it errs on 17.9 %, 5.9 points more than today's: the estimate also uses confidences and "
    assert said == [flatters, None, f"{worse}answers", None]
    alone = replace(compared, rivals=(), replayed_error=0.179).describe_optimism()
    assert alone == "on these queries it errs on 17.9 %: the estimate also uses confidences and answers"
    assert beside(0.0, 0.0, replayed_error=0.13).describe_optimism() is None  # today's was not chosen by its error


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
        ("large alone, today's", "20,000", "12.0 %", "-2.0 ± 0.6"),
    ]


def test_a_comparison_comes_back_from_its_json():
    comparison = beside(
        next_error_cost=0.0112, is_today_default=True, unsupported_gain=UnsupportedGain("large", 0.004, -0.02, 0.01)
    )
    data = json.loads(json.dumps(to_json_value(comparison)))
    assert read_value(Comparison, data, "") == comparison == recorded_comparison({"comparison": data})
    assert recorded_comparison({}) is None
    with pytest.raises(ValueError, match=r"provenance\.comparison\.rivals\[0\]\.se: must be between 0"):
        recorded_comparison({"comparison": data | {"rivals": [data["rivals"][0] | {"se": -1}]}})


RUNGS = ((("small", "large"), 1e-5), (("large",), 2e-5))


def rung(names, cost, **more):
    plain = Calibration("none", 0.0, 1.0, -9.0, 0.0)
    asks = {name: [Rule(0.5, "ask", after), Rule(1, "answer")] for name, after in itertools.pairwise(names)}
    how = {"calibrations": dict.fromkeys(names, plain), "rules": asks | {names[-1]: [Rule(1, "answer")]}}
    return Policy(names, cost=dict.fromkeys(names, 1e-5), expected={"error": 0.1, "cost": cost}, **how, **more)


def test_a_policy_is_printed_in_few_lines():
    """Not as a wall of fields: the target, the position, the figures and the rungs beside the position."""
    cheap, dear = (rung(names, cost, provenance={"tuning": {"match": 0.01}}) for names, cost in RUNGS)
    assert str(cheap) == "Policy: match=0.01, 10.0 % error, $10.0 per million queries\n  small >0.50 → large"
    head, *lines = str(Ladder((cheap, dear), 0.25)).splitlines()
    assert head == "Ladder: match=0.01, position 0.25 of 0 to 1, 10.0 % error, $12.5 per million queries"
    assert lines == ["  75.0 % of the queries: small >0.50 → large", "  25.0 % of the queries: large"]
    assert str(rung(("large",), 2e-5)).startswith("Policy: 10.0 % error, $20.0 per")
    assert repr(cheap).startswith("Policy(models=('small', 'large'), ")
    by_part = rung(("small", "large"), 1.5e-5, segments={"maths": {"models": ["large"], "rules": dear.rules}})
    assert str(by_part).splitlines()[1:] == ["  small >0.50 → large", "  segment maths: large"]


def test_step_decides_by_the_cascade_of_the_querys_segment():
    """A step without the segment decided by the cascade of all other queries, whatever `choose` had chosen."""
    plain, answers = rung(("small", "large"), 1e-5), {"small": [Rule(1, "answer")], "large": [Rule(1, "answer")]}
    by_part = rung(("small", "large"), 2e-5, segments={"maths": {"models": ["small", "large"], "rules": answers}})
    for policy in (by_part, Ladder((plain, by_part), 1.0)):
        evidence = {"query": "q", "logprob": -0.5}
        assert isinstance(policy.step("small", segment="maths", **evidence), Answer)
        assert isinstance(policy.choose("q", segment="maths").step("small", **evidence), Answer)
        for other in ({}, {"segment": "law"}):
            assert isinstance(policy.step("small", **evidence, **other), Defer)


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
        (0.003, 1e-4, True, "use"),
        (-0.003, 3e-4, True, "use"),
    ):
        named = "small >0.50 → large" if verb == "do not use" else "small → large"
        assert advise(cheap, beside(more, cost=cost, fresh=fresh), MONTH).startswith(f"{verb} {named}: ")
    for more, fresh, verb in ((0.04, True, "do not use"), (0.04, False, "use"), (0.015, True, "use")):
        said = advise(cheap, beside(more, fresh=fresh), MONTH, margin=0.01)
        named = "small >0.50 → large" if verb == "do not use" else "small → large"
        assert said.startswith(f"{verb} {named}: "), more
