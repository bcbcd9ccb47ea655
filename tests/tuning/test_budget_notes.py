"""What `tune` says of money: bills in place of mean prices, what is left of a budget, what a mixture brings."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from contest_references import columns, walk_by_hand
from hypothesis import given, strategies as st
from misses import in_turn

import rcjax
from rcjax.frontier.policies import Policies
from rcjax.tuning.bills import by_bill, tell_money

pytestmark = pytest.mark.usefixtures("float64")

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def log(float64):
    """Queries of which the smallest model is unsure cost up to three times as much as others."""
    plain = rcjax.sample_log(200, seed=3).select(MODELS)
    longer = 1 + 2 * (np.asarray(plain.logprob)[:, :1] < -0.4)
    money = jnp.asarray(np.asarray(plain.query_cost) * longer)
    return dataclasses.replace(plain, query_cost=money, cost=money.mean(0))


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


def step_bill(policy, log):
    """Money per query by a loop over `Policy.step`, each answer at its own."""
    total = 0.0
    for i in range(log.n_queries):
        name = policy.first
        while name is not None:
            j = log.models.index(name)
            total += float(log.query_cost[i, j])
            name = getattr(policy.step(name, logprob=min(float(log.logprob[i, j]), 0.0)), "next_model", None)
    return total / log.n_queries


# -- bills


@pytest.mark.parametrize(
    "cascade",
    [
        pytest.param("all", marks=pytest.mark.thorough),
        pytest.param("full", marks=pytest.mark.thorough),
        [MODELS[0], MODELS[2]],
    ],
)
def test_what_a_search_by_the_model_promises_is_the_bill(log, cascade):
    budget = 0.6 * float(np.asarray(log.query_cost).mean(0).sum())
    tuned = rcjax.tune(log, cascade=cascade, budget=budget, intervals=False)
    cost = tuned.policy.expected["cost"]
    assert cost == pytest.approx(float(rcjax.replay(tuned.policy, log).spent), rel=1e-9)
    assert cost == pytest.approx(step_bill(tuned.policy, log), rel=1e-9)
    assert cost <= budget * (1 + 1e-9)
    assert any(note.startswith("costs of policies are bills of this log, ") for note in tuned.notes)


@pytest.mark.thorough
def test_every_point_is_at_its_bill_and_bands_with_it(log, model):
    frontier = rcjax.solve_frontier(model, lam=np.geomspace(1e2, 1e5, 6))
    frontier = frontier.with_bands(rcjax.tuning.bootstrap(frontier, log, replicates=20))
    billed, told = by_bill(frontier, log)
    confidence, (_, right, _, charge) = np.asarray(model.calibrate(log.logprob)), columns(log)
    policies = frontier.policies.on_host()
    bills = [walk_by_hand(policies, place, confidence, right, charge)[1].mean() for place in range(6)]
    np.testing.assert_allclose(billed.cost, bills, rtol=1e-9)
    np.testing.assert_array_equal(billed.error, frontier.error)
    ratio = np.array(bills) / np.asarray(frontier.cost)
    np.testing.assert_allclose(billed.bands.cost, np.asarray(frontier.bands.cost) * ratio[:, None], rtol=1e-9)
    low, high = ratio.min(), ratio.max()
    assert high > 1.05
    words = f"{100 - 100 * low:.0f} % lower to {100 * high - 100:.0f} % higher" if low <= 0.995 else f"up to {100 * high - 100:.0f} % higher"  # fmt: skip # noqa: E501
    assert told == [f"costs of policies are bills of this log, {words} than the model tells at mean prices"]


@pytest.mark.thorough
def test_where_there_is_nothing_to_correct_nothing_is_said(log, model):
    selected = rcjax.tuning.select_frontier(log, model=model).frontier
    assert by_bill(selected, log) == (selected, [])
    alone = rcjax.solve_frontier(model, lam=[1e9], cascades=[MODELS[:1]])  # one model: its mean price is its bill
    assert by_bill(alone, log) == (alone, [])
    gaps = np.asarray(log.answered) & (np.arange(200)[:, None] % 3 != np.arange(3))
    full = rcjax.solve_frontier(model, lam=[1e3, 1e4], cascades="full")
    assert by_bill(full, dataclasses.replace(log, answered=jnp.asarray(gaps))) == (full, [])


# -- what is left, and what a mixture would bring


def made_frontier(model, points, reserve=None):
    """A frontier of (error, cost) by falling cost: pairs at one threshold or another, which do not matter."""
    error, cost = np.array(points, float).T
    members = np.tile([True, False, True], (len(points), 1))
    policies = Policies.of_cascades(np.where(members, 0.5, 1.0), members)
    base = rcjax.solve_frontier(model, lam=[1.0])
    kept = None if reserve is None else jnp.asarray(reserve)
    figures = {"lam": np.arange(1.0, len(points) + 1), "error": error, "cost": cost, "reserve": kept}
    return dataclasses.replace(base, policies=policies, status=np.zeros(len(points), int), **figures)


POINTS = [(0.10, 8e-3), (0.19, 4e-3), (0.20, 2e-3), (0.40, 1e-3)]


@in_turn(
    "target, reserve, words",
    [
        ({"budget": 2e-3}, None, []),
        ({"budget": 2.2e-3}, None, []),  # 9 % are left: nothing to explain
        ({"budget": 3e-3}, None, ["33 % of the budget is left: the next better policy costs $4,000 per million queries",
                                  "a mixture of two policies would have 18.3 % error: --mix"]),
        ({"budget": 4.1e-3}, [0, 2e-4, 0, 0],
         ["51 % of the budget is left: the next better policy costs $4,000 per million queries, "
          "and some is kept in hand, as bills vary",
          "a mixture of two policies would have 16.5 % error: --mix"]),
        ({"budget": 0.1}, None, ["92 % of the budget is left: more money buys no less error"]),
        # Half-way between 2 and 8 thousandths the corners, (0.20, 2) and (0.10, 8), average to 0.15 in place of 0.19.
        ({"budget": 5e-3}, None,
         ["20 % of the budget is left: the next better policy costs $8,000 per million queries",
          "a mixture of two policies would have 15.0 % error: --mix"]),
        ({"max_error": 0.151}, None, ["a mixture of two policies would cost 38 % less: --mix"]),
        ({"max_error": 0.20}, None, []),  # a corner
        ({"error_cost": 1.0}, None, []),
        ({"lam": 1.0}, None, []),
    ],
)  # fmt: skip
def test_why_money_is_left_and_what_a_mixture_brings(model, target, reserve, words):
    frontier = made_frontier(model, POINTS, reserve)
    policy = frontier.policy(**target)
    assert tell_money(frontier, policy, target) == words


def test_a_mixture_and_refusals_are_told_nothing_of_mixing(model):
    frontier = made_frontier(model, POINTS)
    assert tell_money(frontier, frontier.mixture(budget=5e-3), {"budget": 5e-3}) == []
    refusing = dataclasses.replace(frontier, abstain_price=0.3, abstention=np.zeros(4))
    said = tell_money(refusing, refusing.policy(budget=5e-3), {"budget": 5e-3})
    assert said == ["20 % of the budget is left: the next better policy costs $8,000 per million queries"]


@pytest.mark.parametrize("budget", [2e-4, 4e-4, 8e-4])
def test_notes_of_a_log_are_true(log, budget):
    tuned = rcjax.tune(log, budget=budget, intervals=False)
    frontier, cost = tuned.frontier, tuned.policy.expected["cost"]
    left = [note for note in tuned.notes if "of the budget is left" in note]
    assert bool(left) == (cost < 0.9 * budget)
    for note in left:
        assert note.startswith(f"{100 - 100 * cost / budget:.0f} %")
        better = np.asarray(frontier.error) < tuned.policy.expected["error"]
        assert ("more money buys no less error" in note) == (not better.any())
    for note in tuned.notes:
        mixed = re.search(r"a mixture of two policies would have ([\d.]+) % error", note)
        if mixed:
            assert float(mixed[1]) / 100 < tuned.policy.expected["error"] - 0.0095


# -- what a budget keeps in hand


@given(st.integers(0, 2**32 - 1))
def test_a_budget_keeps_its_reserve_in_hand(model, seed):
    rng = np.random.default_rng(seed)
    points = np.stack([rng.integers(1, 9, 12) / 10, rng.integers(1, 9, 12) / 100], axis=1)
    reserve = rng.integers(0, 4, 12) / 100
    frontier = made_frontier(model, points, reserve)
    for budget in np.arange(1, 12) / 100:
        wanted = [
            (error, cost, row)
            for row, ((error, cost), more) in enumerate(zip(points, reserve, strict=True))
            if cost + more <= budget + 1e-12
        ] or [(error, cost, row) for row, (error, cost) in enumerate(points) if cost <= budget + 1e-12]
        if not wanted:
            with pytest.raises(rcjax.InfeasibleError, match="the cheapest costs"):
                frontier.choose(budget=budget)
            continue
        assert frontier.choose(budget=budget) == min(wanted)[2]
    # A limit on the error, and a price, keep nothing.
    for error in np.arange(1, 9) / 10:
        within = [(cost, wrong, row) for row, (wrong, cost) in enumerate(points) if wrong <= error]
        if within:
            assert frontier.choose(max_error=error) == min(within)[2]
    assert frontier.choose(lam=3.0) == int((points[:, 0] + 3.0 * points[:, 1]).argmin())
