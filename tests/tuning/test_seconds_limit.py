"""Limits on the seconds, and a price for them: what is chosen keeps to it, by counting; what a price is."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.timed_logs import timed_log, waited

import rcjax
from rcjax.logs import LogError, OddLogWarning
from rcjax.policy.spec import SecondsLimit
from rcjax.solving.frontier.frontier import InfeasibleError
from rcjax.solving.frontier.points import Policies
from rcjax.tuning.search import SecondsFilter

pytestmark = pytest.mark.usefixtures("float64")
SURE = {"intervals": False}


@pytest.fixture(scope="module")
def log(float64):
    return timed_log(300, seed=1)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


def kept(waits, limit):
    """What counts of the seconds of queries, with one standard error to spare, and how much there may be of it."""
    counted = np.array(waits) > limit.seconds if limit.tail else np.array(waits)
    return counted.mean() + counted.std() / np.sqrt(len(counted)), 0.05 if limit.tail else limit.seconds


@pytest.mark.parametrize(
    ("limit", "how"),
    [
        ("p95=2.5", {}),
        pytest.param(0.9, {}, marks=pytest.mark.thorough),
        pytest.param("p95=3", {"cascade": "all"}, marks=pytest.mark.thorough),
        pytest.param("p95=2.5", {"abstain_price": 0.3}, marks=pytest.mark.thorough),
    ],
)
def test_every_point_of_the_frontier_keeps_to_the_limit(log, limit, how):
    tuned = rcjax.tune(log, max_seconds=limit, error_cost=1.0, **how, **SURE)
    for index in range(0, len(tuned.frontier.lam), max(1, len(tuned.frontier.lam) // 6)):
        figure, allowed = kept(waited(tuned.frontier.policy_at(index), log), SecondsLimit.of(limit))
        assert figure <= allowed * (1 + 1e-9)
    assert tuned.policy.provenance["tuning"]["max_seconds"] == str(limit)


def test_candidates_are_admitted_by_a_count_on_the_log(log, model):
    frontier = rcjax.solve_frontier(model, lam=np.geomspace(30, 30_000, 9))
    for text in ("p95=2.5", "0.9"):
        limit = SecondsLimit.of(text)
        admitted = SecondsFilter.of(limit, log).admits(frontier.policies, model)
        rows = [kept(waited(frontier.policy_at(index), log), limit) for index in range(9)]
        assert admitted.tolist() == [figure <= allowed for figure, allowed in rows]
        assert 0 < admitted.sum() < 9


def test_queries_whose_seconds_are_not_known_do_not_count(log, model):
    seconds = np.array(log.seconds)
    seconds[::3] = np.nan
    with pytest.warns(OddLogWarning, match=r"33\.3 % of the answers of small have no seconds: the limit"):
        half = SecondsFilter.of(SecondsLimit.of(2), dataclasses.replace(log, seconds=jax.device_put(seconds)))
    with pytest.warns(OddLogWarning, match="have no seconds") as warned:
        rcjax.tune(dataclasses.replace(log, seconds=jax.device_put(seconds)), max_seconds=2, **SURE)
    assert [warning.filename for warning in warned] == [__file__]
    (alone,), _ = half.measure(Policies.from_cascades(np.zeros((1, 3)), np.array([[False, False, True]])), model)
    assert alone == pytest.approx(np.nanmean(seconds[:, 2]))
    none = dataclasses.replace(log, seconds=jax.device_put(np.full((300, 3), np.nan)))
    with pytest.raises(LogError, match=f"no answer of {log.models[0]} has its seconds"):
        SecondsFilter.of(SecondsLimit.of(2), none)


def test_a_model_without_any_seconds_is_refused(log):
    """A cascade that ends with it would look as quick as the queries that do not reach it."""
    seconds = np.array(log.seconds)
    seconds[:, -1] = np.nan
    with pytest.raises(LogError, match=f"no answer of {log.models[-1]} has its seconds"):
        rcjax.tune(dataclasses.replace(log, seconds=seconds), budget=1e-4, max_seconds="p95=2.5", **SURE)


def test_an_infeasible_limit_names_the_seconds_of_the_fastest(log):
    with pytest.raises(InfeasibleError, match=r"^no policy takes at most 0.2 seconds for 95 % of the queries with one") as caught:  # fmt: skip # noqa: E501
        rcjax.tune(log, max_seconds="p95=0.2", max_error=0.3, **SURE)
    beyond = 100 * (np.asarray(log.seconds)[:, 0] > 0.2).mean()
    assert str(caught.value).endswith(f"the fastest, small alone, takes longer for {beyond:.1f} % of the queries")
    assert caught.value.tuned.frontier.seconds is not None
    with pytest.raises(InfeasibleError, match=r"the best errs .* \(among the policies that take at most 1 second"):
        rcjax.tune(log, max_seconds=1.0, max_error=0.01, **SURE)


def test_a_log_without_seconds_is_refused(log):
    with pytest.raises(LogError, match=r"no column seconds .* a limit on the seconds needs it"):
        rcjax.tune(dataclasses.replace(log, seconds=None), max_seconds=2.0, **SURE)


def test_todays_model_that_stays_has_its_seconds(log):
    policy = rcjax.tune(log, match=0.0, **SURE).policy
    (model,) = policy.models
    waits = np.asarray(log.seconds)[:, log.models.index(model)]
    assert policy.expected["seconds"] == pytest.approx(np.nanmean(waits), rel=1e-6)
