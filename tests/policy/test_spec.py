"""What goes together with what: each rule broken alone, told in Python's words and in the command line's."""

import json

import pytest

from rcjax.policy.spec import TARGETS, SecondsLimit, Spec, SpecError

BUDGET, ERROR, PRICE = ({name: 0.5} for name in ("budget", "max_error", "lam"))
MEAN, TAIL = SecondsLimit(2.0), SecondsLimit(4.0, True)

#: What is given, whether there are queries of their own for the test, and what is said.
BROKEN = [
    ({"confidence": 0.9}, False, "confidence needs max_error: a budget is kept"),
    ({"confidence": 0.9, **PRICE}, False, "confidence needs max_error: a budget is kept"),
    ({"confidence": 1.0, **ERROR}, False, "confidence must be above 0 and below 1 (100%), not 1.0"),
    (
        {"confidence": float("nan"), **ERROR},
        False,
        "confidence must be above 0 and below 1 (100%), not nan",
    ),
    ({**BUDGET}, True, "held_out needs confidence"),
    ({"judged": True}, False, "judged needs confidence"),
    (
        {"max_seconds": MEAN, **ERROR, "confidence": 0.9},
        False,
        "max_seconds is no guarantee: leave confidence out",
    ),
]

#: What goes together, one option after the other.
WHOLE = [
    {},
    {**PRICE, "cascade": ("a", "b"), "abstain_price": 0.2, "second_cost": 0.01, "max_seconds": MEAN},
    {**ERROR, "confidence": 0.95, "judged": True},
    {**ERROR, "intervals": False},
]


@pytest.mark.parametrize(("given", "held_out", "said"), BROKEN)
def test_what_does_not_go_together_is_said(given, held_out, said):
    with pytest.raises(SpecError) as caught:
        Spec(**given).check(held_out)
    assert str(caught.value).startswith(said)
    option, _, rest = said.partition(" ")
    assert caught.value.option == option
    told = caught.value.say(lambda name: "--" + name.replace("_", "-"))
    names = ("max_error", "confidence", "max_seconds")
    for name in names:
        if f" {name}" in f" {rest}":
            assert "--" + name.replace("_", "-") in told
    assert "{" not in told


@pytest.mark.parametrize("given", WHOLE)
def test_what_goes_together_is_itself(given):
    spec = Spec(**given)
    assert spec.check("confidence" in given) is spec
    assert spec.target == {name: given[name] for name in TARGETS if name in given}
    assert spec.aim == next(iter(spec.target), "budget")
    assert Spec.from_json(json.loads(json.dumps(spec.to_json())), "tuning") == spec


def test_a_spec_is_a_value_with_one_target():
    assert Spec(**BUDGET) == Spec(**BUDGET)
    with pytest.raises(SpecError, match=r"^give one target, not budget and lam$") as caught:
        Spec(budget=1.0, lam=2.0)
    assert caught.value.say("--{}".format) == "give one target, not --budget and --lam"
    with pytest.raises(ValueError, match=r"lam is -1\.0; it must be a positive number"):
        Spec(lam=-1.0)
