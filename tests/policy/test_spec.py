"""The settings of a tuning: targets and limits as people write them, and fields that go together."""

import copy
import dataclasses
import json
import math
import re
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rcjax.policy.ladder import Period, Queries
from rcjax.policy.spec import OWN_OBJECTIVE, TARGETS, SecondsLimit, Spec, SpecError, SpecFields, Target

BUDGET, ERROR, PRICE = ({name: 0.5} for name in ("budget", "max_error", "lam"))
MEAN, TAIL = SecondsLimit(2.0), SecondsLimit(4.0, True)

#: What is given, whether there are queries of their own for the test, and what is said.
BROKEN = [
    ({"confidence": 0.9}, False, "confidence needs max_error or match: a budget is kept"),
    ({"confidence": 1.0, **ERROR}, False, "confidence must be above 0 and below 1 (100%), but it is 1.0"),
    ({"match": 5.0}, False, "match must be between 0 and 1, but it is 5"),
    ({**BUDGET}, True, "held_out needs confidence"),
    ({**ERROR, "period": Period(500.0, "month")}, False, "period needs budget"),
    ({"abstain_price": "x"}, False, "abstain_price must be a number, but it is 'x'"),
    ({"intervals": "no"}, False, "intervals must be true or false, but it is 'no'"),
    ({"period": "month"}, False, "period must be an object, but it is 'month'"),
    ({"cascade": ""}, False, "cascade must be"),
    ({"cascade": "labels"}, False, "cascade must be one of all, full, adaptive, but it is 'labels'"),
    ({"cascade": "objective"}, False, "cascade must be one of all, full, adaptive, but it is 'objective'"),
    ({"judged": True}, False, "judged needs confidence"),
    ({"max_seconds": MEAN, **ERROR, "confidence": 0.9}, False, "max_seconds is not a guarantee: leave confidence out"),
]

#: What goes together, one option after the other.
WHOLE = [
    {},
    {**PRICE, "cascade": ("a", "b"), "abstain_price": 0.2, "max_seconds": MEAN},
    {**ERROR, "confidence": 0.95, "judged": True},
    {**ERROR, "intervals": False, "max_seconds": TAIL},
    {"match": 0.01, "today": "large", "confidence": 0.9, "queries": Queries(1e6, "week")},
]


@pytest.mark.parametrize(("fields", "held_out", "said"), BROKEN)
def test_fields_that_do_not_go_together_are_refused(fields, held_out, said):
    with pytest.raises(SpecError) as caught:
        Spec(**fields).check(held_out)
    assert str(caught.value).startswith(said)
    assert caught.value.option == said.partition(" ")[0]
    told = caught.value.say(lambda name: "--" + name.replace("_", "-"))
    assert [f"--{name.replace('_', '-')}" in told for name in ("max_error", "confidence")] == [
        name in said.partition(" ")[2] for name in ("max_error", "confidence")
    ]


def test_scalars_of_arrays_are_taken_and_any_price_is_an_option():
    assert Spec(abstain_price=np.float32(0.5), intervals=np.True_) == Spec(abstain_price=0.5, intervals=True)
    assert Spec().options_for(Target("lam", 0.0)) == {"error-cost": "1e+12"}


def test_the_search_of_an_objective_of_ones_own_is_recorded_though_no_user_names_it():
    spec = copy.deepcopy(Spec(cascade=OWN_OBJECTIVE))
    record = json.loads(json.dumps(spec.to_json()))
    assert record == {"cascade": "objective"}
    read = Spec.from_json(record, "tuning")
    assert read == spec
    assert read.has_own_objective
    assert dataclasses.replace(read, lam=1.0).has_own_objective


@pytest.mark.parametrize("fields", WHOLE)
def test_options_that_go_together_are_returned(fields):
    spec = Spec(**fields)
    assert spec.check("confidence" in fields) is spec
    assert ({} if spec.target is None else spec.target.to_json()) == {n: fields[n] for n in TARGETS if n in fields}
    assert Spec.from_json(json.loads(json.dumps(spec.to_json())), "tuning") == spec


@given(
    st.dictionaries(
        st.sampled_from([one.name for one in dataclasses.fields(Spec)]),
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6) | st.lists(st.text(), max_size=2),
        max_size=3,
    )
)
def test_a_spec_comes_back_from_its_json(fields):
    try:
        spec = Spec(**fields).check()
    except SpecError:
        return
    assert Spec.from_json(json.loads(json.dumps(spec.to_json())), "tuning") == spec


def test_the_keywords_are_the_fields():
    fields, keywords = (get_type_hints(kind) for kind in (Spec, SpecFields))
    assert list(keywords) == list(fields)
    for name, kind in keywords.items():
        assert fields[name] == kind or name == "max_seconds", name


def test_a_spec_has_one_target():
    with pytest.raises(SpecError, match=r"^give one target, not budget and lam$") as caught:
        Spec(budget=1.0, lam=2.0)
    assert caught.value.say("--{}".format) == "give one target, not --budget and --lam"
    with pytest.raises(ValueError, match=r"give exactly one of budget, max_error, match, error_cost, lam; 0"):
        Target.of()


@pytest.mark.parametrize(
    ("target", "words", "error_cost"),
    [
        (Target("budget", 150e-6), "at most $150 per million queries", None),
        (Target("budget", 1.5), "at most $1,500 per thousand queries", None),
        (Target("max_error", 0.05), "at most 5 % error", None),
        (Target("error_cost", 0.02), "one error costs $0.02", 0.02),
        (Target("lam", 50), "one error costs $0.02", 0.02),
        (Target("lam", 0), "one error costs more than any money", None),
    ],
)
def test_a_target_is_described_in_words(target, words, error_cost):
    assert str(target) == words
    assert target.error_cost == error_cost
    assert target.is_limit == (target.name in ("budget", "max_error", "match"))
    assert Target.of(**target.to_json()) == target


@pytest.mark.parametrize(
    ("name", "value"),
    [("budget", -1.0), ("lam", math.inf), ("max_error", math.nan), ("error_cost", 0.0), ("price", 1.0)],
)
def test_an_impossible_target_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Target(name, value)


def test_a_refusal_names_the_range_and_the_targets_that_were_given():
    assert Target("budget", 0.0).value == 0
    with pytest.raises(ValueError, match=r"budget is -1\.0; it must be 0 or more, and finite"):
        Target("budget", -1.0)
    with pytest.raises(ValueError, match=r"error_cost is 0\.0; it must be above 0, and finite"):
        Target("error_cost", 0.0)
    with pytest.raises(
        ValueError, match="give exactly one of budget, lam; 2 were given"
    ):  # `Frontier.policy` has no `match`
        Target.of(budget=1.0, lam=1.0)


def test_a_budget_of_nothing_has_no_number_of_queries():
    assert Spec(period=Period(500.0, "month")).options_for(Target("budget", 0.0)) == {"budget": "0/M"}


@pytest.mark.parametrize(
    ("text", "limit"), [("2", MEAN), (2, MEAN), ("p95=4", TAIL), (" P95= 1.5 ", SecondsLimit(1.5, True))]
)
def test_a_limit_is_of_the_mean_or_of_the_tail(text, limit):
    assert SecondsLimit.of(text) == SecondsLimit.of(limit.text) == SecondsLimit.of(limit) == limit


@pytest.mark.parametrize("text", ["", "soon", "p95", "p90=4", "0", "p95=0", "inf", "nan", "4=p95"])
def test_an_impossible_limit_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="max_seconds") as caught:
        SecondsLimit.of(text)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_similar_one():
    for name, said in (("max_err", "no option 'max_err'; did you mean 'max_error'?"), ("x", "no option 'x'")):
        with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
            Spec.merge(None, {name: 0.1})


def test_another_target_keeps_follows_for_a_budget_only():
    spec = Spec(budget=0.5, follows=False, intervals=False, period=Period(500.0, "month"))
    assert spec.with_target(Target("budget", 0.2)) == Spec(budget=0.2, follows=False, intervals=False)
    assert spec.with_target(Target("max_error", 0.2)) == Spec(max_error=0.2, intervals=False)
    assert Spec.from_json(spec.with_target(Target("lam", 3.0)).to_json(), "").check() == Spec(lam=3.0, intervals=False)
