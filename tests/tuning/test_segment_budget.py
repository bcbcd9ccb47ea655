"""One budget over several kinds of traffic, against every combination of policies there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.frontier.frontier import InfeasibleError
from rcjax.policy.targets import Target
from rcjax.tuning.segment_budget import Menu, allocate, spending_steps


def menus_of(seed, kinds=3, size=6):
    """Menus whose judged figures are those to be expected."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(kinds))
    return [Menu(float(share), *[rng.uniform(0.05, 0.6, size), rng.uniform(1.0, 9.0, size)] * 2) for share in shares]


def totals(menus):
    """(error, cost) of every combination."""
    combinations = itertools.product(*(range(len(menu.cost)) for menu in menus))
    return np.array(
        [
            [
                sum(m.share * figures[p] for m, p, figures in zip(menus, positions, column, strict=True))
                for column in both
            ]
            for positions in combinations
            for both in [([m.error for m in menus], [m.cost for m in menus])]
        ]
    )


def spent(menus, allocation):
    pairs = list(zip(menus, allocation.positions, strict=True))
    return sum(m.share * m.error[p] for m, p in pairs), sum(m.share * m.cost[p] for m, p in pairs)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 20.0))
def test_at_one_lambda_it_is_the_best_of_all_combinations(seed, error_cost):
    menus = menus_of(seed)
    error, cost = spent(menus, allocate(menus, Target("error_cost", error_cost)))
    losses = totals(menus) @ np.array([1.0, 1 / error_cost])
    assert error + cost / error_cost == pytest.approx(losses.min(), rel=1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6))
def test_each_step_is_the_best_at_its_cost_or_less(seed):
    menus = menus_of(seed)
    steps, every = spending_steps(menus), totals(menus)
    errors, costs = steps.total(menus, "error"), steps.total(menus, "cost")
    assert (np.diff(costs) > 0).all()
    for error, cost in zip(errors, costs, strict=True):
        assert error <= every[every[:, 1] <= cost * (1 + 1e-12), 0].min() + 1e-12


@pytest.mark.parametrize(("target", "limited", "least"), [("budget", 1, 0), ("max_error", 0, 1)])
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6), part=st.floats(0.0, 1.0))
def test_a_limit_is_kept_and_the_rest_is_as_good_as_can_be(target, limited, least, seed, part):
    menus = menus_of(seed)
    every = totals(menus)
    reached = spending_steps(menus).total(menus, "cost" if target == "budget" else "error")
    limit = float(reached.min() + part * (reached.max() - reached.min()))
    figures = spent(menus, allocate(menus, Target(target, limit)))
    assert figures[limited] <= limit * (1 + 1e-9)
    within = every[every[:, limited] <= limit * (1 + 1e-9)]
    assert figures[least] == pytest.approx(within[:, least].min(), abs=1e-12)


def test_out_of_reach_says_what_can_be_reached():
    menus = menus_of(0)
    least = spending_steps(menus).total(menus, "cost").min()
    with pytest.raises(InfeasibleError, match="the cheapest costs"):
        allocate(menus, Target("budget", float(least) / 2))
    with pytest.raises(InfeasibleError, match=r"no policies of the segments err on 0\.100% or less; the best err on"):
        allocate(menus, Target("max_error", 0.001))


def test_the_same_lambda_everywhere():
    menus = menus_of(3)
    allocation = allocate(menus, Target("budget", float(spending_steps(menus).total(menus, "cost")[1])))
    for menu, place in zip(menus, allocation.positions, strict=True):
        loss = menu.judged_error + allocation.lam * menu.judged_cost
        assert loss[place] == pytest.approx(loss.min())
