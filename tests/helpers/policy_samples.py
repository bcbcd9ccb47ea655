"""A policy of three models and its JSON, policies drawn at random, and damage to their files."""

import copy
import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from rcjax.policy import Agreement, Calibration, Ladder, Policy, Rule
from rcjax.policy.decisions import ANSWER_FORMS

GENERATION = Calibration("generation", intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
CHOICE = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.125, largest=10.0)
PLAIN = Calibration("none", intercept=2.0, slope=4.0, smallest=-3.0, largest=0.0)


def make_policy(**changes):
    parts = {
        "models": ("small", "médium", "large"),
        "calibrations": {"small": GENERATION, "médium": CHOICE, "large": PLAIN},
        "rules": {
            "small": (Rule(0.3, "ask", "large"), Rule(0.7, "ask", "médium"), Rule(1.0, "answer")),
            "médium": (Rule(0.6, "ask", "large"), Rule(1.0, "answer")),
            "large": (Rule(1.0, "answer"),),
        },
        "cost": {"small": 1e-5, "médium": 1 / 3e4, "large": 2e-4},
        "prices": {"small": {"input": 0.1, "output": 0.4}},
        "expected": {"error": 0.1, "cost": 3e-5, "lam": 0.0, "error_cost": None},
        "provenance": {"queries": 300, "versions": {"rcjax": "0.1.0"}, "notes": ["λ", True, None, 0.5]},
    }
    return Policy(**{**parts, **changes})


def make_json(**changes):
    return {**make_policy().to_json(), **changes}


names = st.text(min_size=1, max_size=8)
reals = st.floats(-1e100, 1e100)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**99), 10**99) | reals | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def policies(draw):
    models = draw(st.lists(names, min_size=1, max_size=4, unique=True))

    def calibration():
        low, high = sorted([draw(reals), draw(reals)])
        transform = draw(st.sampled_from(["choice", "generation", "none"]))
        return Calibration(transform, draw(reals), draw(reals), low, high)

    def rule(up_to, later):
        target = draw(st.sampled_from([None, *later]))
        return Rule(up_to, "answer") if target is None else Rule(up_to, "ask", target)

    def table(later):
        ends = draw(st.sets(st.floats(0, 1), max_size=3)) | {1.0}
        return [rule(up_to, later) for up_to in sorted(ends)]

    def agreement(i):
        earlier, compare = draw(st.sampled_from(models[:i])), draw(st.sampled_from(ANSWER_FORMS))
        return Agreement(earlier, draw(st.sampled_from(models[i + 1 :])), compare)

    comparing = [i for i in range(1, len(models) - 1) if draw(st.integers(0, 3)) == 0]
    amounts = st.floats(0, 1e100)
    return Policy(
        models=models,
        calibrations={model: calibration() for model in models},
        rules={model: table(models[i + 1 :]) for i, model in enumerate(models)},
        cost={model: draw(amounts) for model in models},
        prices=draw(st.none() | st.dictionaries(names, st.dictionaries(names, amounts, max_size=2), max_size=2)),
        expected=draw(st.dictionaries(names, st.none() | reals, max_size=3)),
        provenance=draw(st.dictionaries(names, json_values, max_size=3)),
        agreements={models[i]: agreement(i) for i in comparing},
    )


DELETE = object()


def edited(path, value, data=None):
    """JSON, by default that of a policy, with the entry at `path` replaced, or deleted."""
    data = make_policy().to_json() if data is None else copy.deepcopy(data)
    *parents, last = path
    spot = data
    for key in parents:
        spot = spot[key]
    if value is DELETE:
        del spot[last]
    else:
        spot[last] = value
    return data


def places(data, path=()):
    """The path of every entry in a JSON value."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


wrong = (
    json_values
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, 2, -1, "", "small", DELETE])
    | st.floats()
)


def make_ladder(rungs, position, budget=None):
    """A ladder of policies whose costs are made to rise, and whose provenance is that of the first."""
    costs = [max(rung.expected.get("cost") or 0.0, 1e-9) for rung in rungs]
    rising = costs if all(low < high for low, high in pairwise(costs)) else [1e-5 * i for i in range(1, len(costs) + 1)]
    alike = [
        replace(rung, expected={**rung.expected, "cost": cost}, provenance=rungs[0].provenance)
        for rung, cost in zip(rungs, rising, strict=True)
    ]
    return Ladder(tuple(alike), position, budget)
