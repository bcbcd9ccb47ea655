"""What goes together with what: each rule broken alone, told in Python's words and in the command line's."""

import pytest
from misses import in_turn

from rcjax.policy.spec import Spec, SpecError
from rcjax.policy.targets import SecondsLimit, Target

BUDGET, ERROR, PRICE = (Target(name, 0.5) for name in ("budget", "max_error", "lam"))
MEAN, TAIL = SecondsLimit(2.0), SecondsLimit(4.0, True)

#: What is given, whether there are queries of their own for the test, and what is said.
BROKEN = [
    ({"confidence": 0.9}, False, "confidence needs max_error or budget"),
    ({"confidence": 0.9, "targets": (PRICE,)}, False, "confidence needs max_error or budget"),
    ({"confidence": 1.0, "targets": (BUDGET,)}, False, "confidence must be above 0 and below 1 (100%), not 1.0"),
    (
        {"confidence": float("nan"), "targets": (BUDGET,)},
        False,
        "confidence must be above 0 and below 1 (100%), not nan",
    ),
    ({"targets": (BUDGET,)}, True, "held_out needs confidence"),
    ({"judged": True}, False, "judged needs confidence"),
    (
        {"max_seconds": MEAN, "targets": (ERROR,), "confidence": 0.9},
        False,
        "max_seconds is no guarantee: leave confidence out",
    ),
]

#: What goes together, one option after the other.
WHOLE = [
    {},
    {"targets": (PRICE,), "search": (("a", "b"),), "abstain_price": 0.2, "second_cost": 0.01, "max_seconds": MEAN},
    {"targets": (ERROR,), "confidence": 0.95, "judged": True},
    {"targets": (ERROR,), "intervals": False},
]


@in_turn("given, held_out, said", BROKEN)
def test_what_does_not_go_together_is_said(given, held_out, said):
    with pytest.raises(SpecError) as caught:
        Spec(**given).check(held_out)
    assert str(caught.value).startswith(said)
    option, _, rest = said.partition(" ")
    assert caught.value.option == option
    told = caught.value.say(lambda name: "--" + name.replace("_", "-"))
    names = ("max_error", "budget", "confidence", "max_seconds")
    for name in names:
        if f" {name}" in f" {rest}":
            assert "--" + name.replace("_", "-") in told
    assert "{" not in told


@in_turn("given", WHOLE)
def test_what_goes_together_is_itself(given):
    spec = Spec(**given)
    assert spec.check("confidence" in given) is spec
    assert spec.aim == (given["targets"][0].name if "targets" in given else "budget")
    assert spec.target == {target.name: target.value for target in given.get("targets", ())}


def test_a_spec_is_a_value():
    assert Spec((BUDGET,)) == Spec((BUDGET,))
