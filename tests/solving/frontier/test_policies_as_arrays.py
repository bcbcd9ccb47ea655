"""Policies as arrays: cascades against a loop over their models, leading axes, and who is asked at all."""

import numpy as np
import pytest

from rcjax.solving.frontier.points import ABSTAIN, Policies

pytestmark = pytest.mark.usefixtures("float64")

COUNT, K = 60, 4
LEVELS = np.array([0.0, 0.3, 0.5, 0.8, 1.0])


def cascades(abstaining, shape=(COUNT,)):
    """(thresholds, members, abstention thresholds or None) at random; some models never ask, one cascade is empty."""
    rng = np.random.default_rng(1)
    thresholds, members = rng.choice(LEVELS, (*shape, K)), rng.uniform(size=(*shape, K)) < 0.6
    members[(0,) * len(shape)] = False
    return thresholds, members, np.minimum(rng.choice(LEVELS, (*shape, K)), thresholds) if abstaining else None


def action_at(policies, row, j, confidence):
    """What a model does: the action of the first interval whose upper end is not below the confidence."""
    rules = zip(policies.bounds[row, j], policies.actions[row, j], strict=True)
    return next(int(action) for end, action in rules if confidence <= end)


@pytest.mark.parametrize("abstaining", [False, True])
def test_intervals_of_cascades_match_a_plain_loop(abstaining):
    thresholds, members, abstain_thresholds = cascades(abstaining)
    policies = Policies.from_cascades(thresholds, members, abstain_thresholds)
    assert policies.bounds.shape == policies.actions.shape == (COUNT, K, 3 if abstaining else 2)
    assert (policies.bounds[..., -1] == 1).all()
    assert (np.diff(policies.bounds, axis=-1) >= 0).all()
    for row in range(COUNT):
        assert policies.first[row] == next((j for j in range(K) if members[row, j]), 0)
        for j in range(K):
            following = next((later for later in range(j + 1, K) if members[row, later]), j)
            for confidence in (*LEVELS, *(LEVELS[:-1] + 0.1)):
                abstains = abstain_thresholds is not None and confidence <= abstain_thresholds[row, j]
                asks = not abstains and confidence <= thresholds[row, j]
                expected = ABSTAIN if abstains else following if asks else j
                assert action_at(policies, row, j, confidence) == expected
