"""What is done with a frontier or a policy that passes on a share of some queries: bands, checks."""

import dataclasses

import numpy as np
import pytest
from policy_samples import make_ladder

import rcjax
from rcjax.frontier.frontier import make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies, Splits
from rcjax.replaying.replay import replay
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.bootstrapping import bootstrap
from rcjax.tuning.replicates import _replaced

pytestmark = pytest.mark.usefixtures("float64")
SHARE = 0.3
SMALL, LARGE = "llama3.2-1b", "llama3.1-70b"


@pytest.fixture(scope="module")
def logs():
    return rcjax.sample_log(384, seed=0).select([SMALL, LARGE]).split(0.5, seed=0)


@pytest.fixture(scope="module")
def frontier(logs):
    """One point that passes on a share between two thresholds, and those with either threshold alone."""
    model = rcjax.fit(logs[0])
    low, high = np.quantile(np.asarray(model.calibrate(logs[0].logprob))[:, 0], [0.2, 0.8])
    thresholds = np.array([[high, 0.0], [high, 0.0], [low, 0.0]])
    splits = Splits(np.array([[low, 0.0], [high, 0.0], [low, 0.0]]), np.array([[SHARE, 1.0], [1.0, 1.0], [1.0, 1.0]]))
    policies = Policies.of_cascades(thresholds, np.ones((3, 2), bool), splits=splits)
    lam = np.array([100.0, 200.0, 300.0])
    points = Points(lam, np.zeros(3, int), Outcomes(*np.zeros((3, 3))), policies)
    seen = replay(make_frontier(model, points, search="selected"), logs[0])
    expected = Outcomes(np.asarray(seen.error), np.asarray(seen.cost), np.zeros(3))
    return make_frontier(model, dataclasses.replace(points, expected=expected), search="selected")


def mixed(frontier):
    """The mixture that the first policy of the frontier is."""
    return make_ladder((frontier.point(2), frontier.point(1)), SHARE)


@pytest.mark.thorough
@pytest.mark.parametrize("refit", [False, True])
def test_bands(frontier, logs, refit):
    bands = bootstrap(frontier, logs[0], replicates=20, refit=refit)
    error, seen = np.asarray(bands.error), np.asarray(replay(frontier, logs[0]).error)
    assert np.isfinite(error).all()
    assert (error[:, 0] < seen).all()
    assert (seen < error[:, 1]).all()
    assert frontier.with_bands(bands).to_json()["frontier"][0]["splits"][SMALL]["share"] == SHARE


def test_replicates_keep_the_splits_of_either(frontier):
    own = frontier.policies.on_host()
    plain = Policies.of_cascades(own.thresholds, own.members)
    for one, other, where in ((own, plain, [False] * 3), (plain, own, [True] * 3)):
        kept = _replaced(one, other, np.array(where))
        np.testing.assert_array_equal(kept.splits.share, own.splits.share)
        np.testing.assert_array_equal(kept.bounds, own.bounds)
    assert (_replaced(own, plain, np.array([True] * 3)).shares == 1).all()
    assert _replaced(plain, plain, np.array([True] * 3)).shares is None


@pytest.mark.thorough
def test_a_check_on_fresh_queries_is_that_of_the_mixture(frontier, logs):
    one, two = (rcjax.check_policy(own, logs[1], seed=0) for own in (frontier.point(0), mixed(frontier)))
    assert not one.drifted
    assert one.error["seen"] == pytest.approx(two.error["seen"])
    assert one.cost["seen"] == pytest.approx(two.cost["seen"])
    assert one.cost["se"] == pytest.approx(two.cost["se"])
    assert one.retuning is not None


@pytest.mark.thorough
def test_what_agreement_leads_to_expect(frontier, logs):
    log = logs[0]
    rows = log.logprob, log.correct, log.answered
    policies = frontier.policies.on_host().comparing()
    (wrong,) = expected_on_log(frontier.model.calibrators, rows, log, [policies])
    np.testing.assert_allclose(wrong[0], SHARE * wrong[1] + (1 - SHARE) * wrong[2], atol=1e-12)


def test_what_no_model_foretells_is_refused(frontier):
    with pytest.raises(ValueError, match="not a share of some"):
        rcjax.solving.outcomes(frontier.model, frontier)
