"""From figures to verdicts and advice: of which policies a check is, its limits, and what is said of each."""

import numpy as np
import pytest

from rcjax.diagnostics import LIMITS, verdicts
from rcjax.diagnostics.verdicts import AFFECTS

# -- whom a check affects


def test_every_check_has_a_scope():
    assert set(AFFECTS) == set(LIMITS)


# -- verdicts


@pytest.mark.parametrize("name", LIMITS)
def test_a_figure_is_judged_by_its_limits(name):
    limits = LIMITS[name]
    sign = 1 if limits.bad > limits.doubtful else -1
    beyond, before = limits.bad + sign * 1e-6, limits.doubtful - sign * 1e-6
    between = (limits.doubtful + limits.bad) / 2
    for p_value, expected in (
        (None, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (0.01, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (0.05, ("doubtful", "fine", "fine", "fine", "fine")),
        (np.nan, ("doubtful", "fine", "fine", "fine", "fine")),
    ):
        figures = beyond, limits.bad, between, limits.doubtful, before
        assert tuple(verdicts.judge(name, figure, p_value) for figure in figures) == expected
        assert verdicts.judge(name, np.nan, p_value) == "doubtful"


def assert_advice(checks, *expected):
    """The verdicts are those expected, and each that is not fine says in one sentence what to do."""
    checks = list(checks)
    assert [check.verdict for check in checks] == list(expected)
    for check in checks:
        if check.verdict == "fine":
            assert check.advice == ""
            continue
        assert len(check.advice) > 30
        assert "\n" not in check.advice
        assert not any(f"{end} " in check.advice for end in ".!?")
        assert "nan" not in check.advice.split()
        assert all(name in check.advice for name in check.subject.split(" | "))
    return [check.advice for check in checks]


def frontier(error=0.0, cost=0.0, band=0.001):
    seen = {"error": np.full(4, 0.2 + error), "cost": np.full(4, 2.0 + cost)}
    bands = {"error_band": np.full(4, band), "cost_band": np.full(4, band)}
    return seen | bands | {"predicted_error": np.full(4, 0.2), "predicted_cost": np.full(4, 2.0)}


def test_what_chance_can_make_of_a_promise_is_said():
    advice = assert_advice(verdicts.judge_promise(frontier(0.05, band=1), 150), "doubtful", "fine")
    assert "chance alone can make that with 150 queries" in advice[0]
