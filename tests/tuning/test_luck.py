"""Luck: what cascades have more of than single models is added to their errors, and nothing to a single model's."""

import dataclasses
from typing import get_args

import numpy as np
import pytest

from rcjax.policy.spec import TargetName
from rcjax.tuning.candidates import Candidates
from rcjax.tuning.comparison import Comparison, Gain, Gains, Luck
from rcjax.tuning.select import raised_by_luck

PENALTY = np.array([0.30, 0.10, 0.25, 0.15, 0.12, 0.999])


def trial(compares=True):
    """Two single models, two pairs, and one policy that compares answers; then a pair that nearly always errs."""
    first, second, third = np.array([[0, 2, 0, 0, 0, 1], [0, 2, 1, 2, 1, 2], [0, 2, 1, 2, 2 if compares else 1, 2]])
    half = np.full(6, 0.5)
    return Candidates(3, first, second, third, half, half, PENALTY, np.arange(1.0, 7), PENALTY, half)


def comparison(prices, budgets):
    """What a contest has shown: luck of single models, pairs, and all that may compare, for prices and budgets."""
    return Comparison(
        np.geomspace(1, 9, 3), Gains(*[Gain(0.0, 0.0)] * 3), luck=Luck(np.array(prices), np.array(budgets))
    )


@pytest.mark.parametrize(
    ("target", "prices", "budgets", "pairs", "comparing"),
    [
        ("lam", (0.0, 0.03, 0.05), (0.0, 0.2, 0.4), 0.03, 0.05),
        ("error_cost", (0.0, 0.03, 0.05), (0.0, 0.2, 0.4), 0.03, 0.05),
        ("budget", (0.0, 0.3, 0.5), (0.0, 0.02, 0.04), 0.02, 0.04),
        ("max_error", (0.0, 0.3, 0.5), (0.0, 0.5, 0.6), 0.0, 0.0),  # where nothing is chosen among many
        ("lam", (0.01, 0.03, 0.05), (0.0, 0.2, 0.4), 0.02, 0.04),  # single models have some of it too
        ("budget", (0.0, 0.3, 0.5), (-0.02, 0.02, 0.04), 0.04, 0.06),
        ("lam", (0.0, 0.03), (0.0, 0.2), 0.03, 0.03),  # nothing compares answers
        ("lam", (0.0, -0.03, 0.05), (0.0, 0.2, 0.4), 0.0, 0.05),  # nothing looks worse than it is
        ("budget", (0.0, 0.3, 0.5), (0.05, 0.02, 0.04), 0.0, 0.0),
    ],
)
def test_luck_is_a_constant_for_each_kind_of_policy(target, prices, budgets, pairs, comparing):
    own = trial(compares=len(prices) > 2)
    raised = raised_by_luck(own, comparison(prices, budgets), target)
    np.testing.assert_array_equal(raised.error[:2], PENALTY[:2])  # to the last bit
    np.testing.assert_allclose(raised.error[2:4], PENALTY[2:4] + pairs, rtol=1e-12)
    assert raised.error[4] == pytest.approx(PENALTY[4] + comparing, rel=1e-12)
    assert raised.error[5] == min(PENALTY[5] + pairs, 1.0)
    for name in ("cost", "abstention", "third", "threshold"):
        assert getattr(raised, name) is getattr(own, name)


def test_of_one_model_there_is_nothing_to_raise():
    own, shown = trial(compares=False).take(np.array([0])), comparison((0.3,), (0.2,))
    for target in get_args(TargetName):
        assert raised_by_luck(own, shown, target).error.tolist() == [0.30]
        assert shown.luckier(target, comparing=False) == 0.0
    assert dataclasses.replace(shown, luck=None).luckier("budget", True) == 0.0
