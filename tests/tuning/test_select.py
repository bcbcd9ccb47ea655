"""The frontier of `select_frontier`: compared with loops over all pairs of models, and with walks by hand."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cross_validation_references import every_policy, useful
from helpers.selection_references import as_rows, make_log

import rcjax
from rcjax.solving.frontier.points import PointStatus, lam_range, lower_hull
from rcjax.tuning import search
from rcjax.tuning.candidate_scores import Blending
from rcjax.tuning.cross_validation import N_LAM, CrossValidation, Gain, SetGain, Targets
from rcjax.tuning.search import estimate_blending, select_frontier

pytestmark = pytest.mark.usefixtures("float64")

N, K = 120, 3


def untied(log):
    """The log, no two of whose confidences are the same: no threshold parts any."""
    return dataclasses.replace(log, logprob=log.logprob * (1 + 1e-5 * np.arange(log.n_queries)[:, None]))


@pytest.fixture(scope="module")
def log(float64):
    return untied(make_log(N, K, seed=1))


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


@pytest.fixture(scope="module")
def found(log, model):
    return select_frontier(log, model=model)


@pytest.fixture
def compared(monkeypatch, log):
    """Stand in for `CrossValidation` with a fixed optimism."""

    def decide(luck=0.0):
        nothing, lam = Gain(*[np.zeros((2, 3))] * 2), lam_range(np.asarray(log.cost), N_LAM)
        lucks, targets = np.array([0.0, luck]), Targets(lam, np.ones(3))
        gains = SetGain(nothing, nothing, nothing)
        shown = CrossValidation(targets, gains, None, nothing, lucks, Blending())
        monkeypatch.setattr(search, "cross_validate", lambda *_, **how: SimpleNamespace(summarise=lambda: shown))

    return decide


def reference(log):
    """[(first, second, threshold, error, cost)] of single models, and of the pairs than which none of them is better.

    Better is one that errs less often and costs less, as counted; as often, up to rounding, is no less.
    """
    blending = estimate_blending(log, rcjax.fit(log).calibrators)
    return [own[:5] for own in useful(every_policy(log, np.asarray(log.answered), blending), len(log.models))]


# -- on a log


def test_the_frontier_is_in_order_and_nothing_on_it_is_beaten(found):
    frontier = found.frontier
    lam, error, cost = (np.asarray(each) for each in (frontier.lam, frontier.error, frontier.cost))
    assert frontier.search == "labels"
    assert len(lam) > 5
    assert (np.diff(lam) >= 0).all()
    assert (np.diff(cost) < 0).all()
    assert (np.diff(error) > 0).all()
    assert (np.diff(np.diff(error) / np.diff(cost)) < 0).all()  # corners of a hull
    assert set(np.asarray(frontier.status).tolist()) == {PointStatus.CONVERGED}
    assert (np.asarray(frontier.members).sum(1) <= 2).all()
    np.testing.assert_array_equal(frontier.policies.first, np.asarray(frontier.members).argmax(1))


def test_the_frontier_is_the_hull_of_all_pairs_by_definition(log, model, compared):
    compared()
    frontier = select_frontier(log, model=model).frontier
    rows, every = as_rows(frontier), np.array(reference(log))
    assert sum(i != j for i, j, *_ in rows) > 3
    corners = lower_hull(every[:, 4], every[:, 3])[::-1]
    np.testing.assert_allclose(np.array(rows), every[corners], rtol=1e-6, atol=1e-9)
    loss = every[corners, 3] + np.asarray(frontier.lam)[:, None] * every[corners, 4]
    assert loss.argmin(1).tolist() == [*range(len(corners))]


def test_the_order_of_the_log_does_not_matter_where_a_model_is_given(log, model, found):
    again = select_frontier(log.select(log.models[::-1]), model=model)
    np.testing.assert_allclose(again.frontier.error, found.frontier.error, rtol=1e-9)
    np.testing.assert_allclose(again.frontier.thresholds, found.frontier.thresholds, rtol=1e-9)
    ours, theirs = (one.cross_validation.pair_gains.by_lam for one in (again, found))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-15)  # sums are of another order


def test_a_second_selection_compiles_nothing(log, model, found, compilations):
    other = untied(make_log(N, K, seed=2))
    fitted = rcjax.fit(other)
    with compilations() as compiled:
        select_frontier(other, model=fitted)
    assert not compiled


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"correct": np.array([False, True, True])}, id="never right", marks=pytest.mark.thorough),
        {"logprob": np.where(np.arange(N)[:, None] % 2, -np.inf, 0.0), "query_cost": np.array([0.0, 1.0, 2.0])},
        pytest.param({"logprob": np.full(3, -0.5)}, id="one confidence", marks=pytest.mark.thorough),
        pytest.param({"query_cost": np.ones(3)}, id="one cost", marks=pytest.mark.thorough),
    ],
)
def test_a_log_with_little_information_has_a_frontier(found, changes):
    log = make_log(N, K, seed=4, **changes)
    frontier = select_frontier(log).frontier
    for name in ("lam", "error", "cost", "thresholds"):
        assert np.isfinite(getattr(frontier, name)).all(), name
    right = np.asarray(log.correct)
    assert float(frontier.error.min()) <= 1 - right.mean(0).max() + 0.05  # with what folds left out show of luck
    for point in range(len(frontier.lam)):
        assert frontier.policy_at(point).models


@pytest.mark.thorough
def test_single_precision_is_close_to_double(log, model, compared, float32):
    compared()
    with jax.enable_x64(True):
        double = select_frontier(log, model=model).frontier
    lower = {name: np.asarray(getattr(log, name)).astype(np.float32) for name in ("logprob", "query_cost", "cost")}
    single = select_frontier(dataclasses.replace(log, **{name: jnp.asarray(each) for name, each in lower.items()}))
    frontier, lam = single.frontier, np.geomspace(1e-3, 1, 20)[:, None]
    assert frontier.lam.dtype == frontier.error.dtype == frontier.thresholds.dtype == jnp.float32
    rising = np.diff(np.asarray(frontier.lam, float))
    assert (rising >= -1e-5 * np.asarray(frontier.lam, float)[1:]).all()
    one, other = ((np.asarray(each.error) + lam * np.asarray(each.cost)).min(1) for each in (frontier, double))
    np.testing.assert_allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        *(({"lam": lam}, "lam must hold at least one finite number") for lam in ([], [-1.0], [np.nan], [1.0, np.inf])),
    ],
)
def test_impossible_options_are_refused(log, model, option, message):
    with pytest.raises(ValueError, match=message):
        select_frontier(log, model=model, **option)


def test_a_log_without_a_complete_query_is_refused(model):
    """Every pair of models has common queries, but no cascade of all three can be compared with another."""
    turn = np.arange(N)[:, None] % 3 != np.arange(3)
    with pytest.raises(ValueError, match="no query"):
        select_frontier(make_log(N, K, seed=7, answered=turn))
    with pytest.raises(ValueError, match=r"too few queries, 4: .* needs at least 5 queries"):
        select_frontier(make_log(4, K, seed=7))


# -- luck


def test_the_optimism_of_the_choice_is_added_to_the_errors_of_cascades(log, model, compared):
    """No single model's: that is counted. So a cascade must promise more than it is lucky to stand beside one."""
    frontiers = {}
    for luck in (0.0, 0.015, -0.015):
        compared(luck)
        frontiers[luck] = select_frontier(log, model=model).frontier
    plain, raised = ({tuple(row[:3]): row[3] for row in as_rows(frontiers[luck])} for luck in (0.0, 0.015))
    counted = 1 - np.asarray(log.correct).mean(0)
    shared = plain.keys() & raised.keys()
    assert sum(i != j for i, j, _ in shared) > 3
    for i, j, threshold in shared:
        own = raised[i, j, threshold]
        assert own == pytest.approx(counted[i] if i == j else plain[i, j, threshold] + 0.015, rel=1e-9)
    np.testing.assert_allclose(frontiers[-0.015].error, frontiers[0.0].error, rtol=1e-12)
    alone = [sum(i == j for i, j, _ in rows) for rows in (plain, raised)]
    assert alone[1] >= alone[0]
    assert alone[1] > 0
