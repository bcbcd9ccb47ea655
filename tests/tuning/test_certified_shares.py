"""Guarantees of policies that pass on a share of some queries: by what is expected over the lots, not by counts."""

import dataclasses

import jax
import numpy as np
import pytest

import rcjax
from rcjax.frontier.frontier import make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies, Splits
from rcjax.logs import Log
from rcjax.replaying.replay import replay
from rcjax.tuning.certify import certify
from rcjax.tuning.evidence import evidence_of
from rcjax.tuning.p_values import binomial_tail, bounded_mean_p_value

pytestmark = pytest.mark.usefixtures("float64")
N, SHARE = 200, 0.4
COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


@pytest.fixture(scope="module")
def model() -> rcjax.CascadeModel:
    return dataclasses.replace(rcjax.demo_model(), cost=jax.device_put(COST))


@pytest.fixture(scope="module")
def frontier(model):
    """The smallest model passes on a share of all queries to the largest; beside it the largest alone."""
    members = np.zeros((2, 5), bool)
    members[0, [0, 4]], members[1, 4] = True, True
    thresholds, share = np.zeros((2, 5)), np.ones((2, 5))
    thresholds[0, 0], share[0, 0] = 1.0, SHARE
    policies = Policies.of_cascades(thresholds, members, splits=Splits(np.zeros((2, 5)), share))
    expected = Outcomes(np.array([0.2, 0.1]), np.array([1 + 16 * SHARE, 16.0]), np.zeros(2))
    return make_frontier(model, Points(np.array([1.0, 0.5]), np.zeros(2, int), expected, policies))


def wrong(model, small, large):
    """A log in which the smallest and the largest model err on so many queries."""
    right = np.ones((N, 5), bool)
    right[:small, 0] = right[:large, 4] = False
    arrays = np.full((N, 5), -0.5), right, np.ones((N, 5)), np.ones((N, 5), bool), COST
    return Log(model.models, *map(jax.device_put, arrays), tuple(range(N)), "choice", "made")


def test_what_counts_is_the_expectation_over_lots(model, frontier):
    log = wrong(model, 50, 15)
    found = certify(frontier, log, max_error=0.3, max_cost=9.0)
    lost, cost = (50 * (1 - SHARE) + 15 * SHARE) / N, 1 + 16 * SHARE
    assert found.index == 0
    assert (found.errors, found.cost) == (36, pytest.approx(cost))
    assert float(replay(frontier, log).error[0]) == pytest.approx(lost)
    by_cost = bounded_mean_p_value(SHARE, N, 8 / 16)
    assert found.p_value == pytest.approx(max(bounded_mean_p_value(lost, N, 0.3), by_cost), rel=1e-6)
    assert found.p_value >= max(binomial_tail(36, N, 0.3), binomial_tail(round(SHARE * N), N, 0.5))
    assert lost < found.error_bound < 0.3
    alone = certify(frontier, log, max_error=0.15)
    assert (alone.index, alone.errors) == (1, 15)
    assert alone.p_value == pytest.approx(binomial_tail(15, N, 0.15))
    assert certify(frontier, wrong(model, 49, 15), max_error=0.3).errors == 35  # 35.4, rounded


@pytest.mark.thorough
def test_false_promises_are_as_rare_as_stated(frontier):
    """Of logs drawn so that the true error is just above the target."""
    rng, repeats, odds = np.random.default_rng(0), 20_000, np.array([0.1, 0.2, 0.05, 0.65])  # both, small, large, none
    true = odds[:3] @ [1.0, 1 - SHARE, SHARE]
    means, counts = np.unique(
        rng.multinomial(N, odds, repeats)[:, :3] @ [1.0, 1 - SHARE, SHARE] / N, return_counts=True
    )
    p_values = np.array(
        [
            evidence_of(frontier, N, np.array([mean, 0.0]), np.zeros(2), np.ones(2))[0].error_p_value(true - 1e-9)
            for mean in means
        ]
    )
    for level in (0.01, 0.05, 0.2):
        assert counts[p_values <= level].sum() / repeats <= level + 3 * np.sqrt(level / repeats)
