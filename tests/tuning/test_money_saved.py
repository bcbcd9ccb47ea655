"""What limits on the error save: money, on queries left out, beside the single model that keeps to them."""

import dataclasses
import re

import numpy as np
import pytest

import rcjax
from rcjax.tuning.comparison import AtErrors, Gain

pytestmark = pytest.mark.usefixtures("float64")

LIMITS = np.array([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("alone", "limit", "position"),
    [
        ([0.15, 0.25], 0.16, 1),  # 0.1 is as near, but no model keeps to it
        ([0.15, 0.25], 0.24, 1),
        ([0.15, 0.25], 0.26, 2),
        ([0.5, 0.6], 0.26, 2),
        ([0.5, 0.6], 0.9, 2),
        ([0.01, 0.02], 0.0, 0),  # nowhere does none keep to it
    ],
)
def test_limits_are_told_by_one_that_as_many_models_keep_to(alone, limit, position):
    nothing = np.zeros((2, 3))
    assert AtErrors(LIMITS, nothing, Gain(nothing, nothing), np.array(alone)).nearest(limit) == position


@pytest.fixture(scope="module")
def selection(float64):
    log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    return rcjax.tuning.select_frontier(log, target="max_error"), log


@pytest.mark.thorough
def test_what_is_saved_is_a_bill_below_that_of_the_best_single_model(selection):
    chosen, log = selection
    at = chosen.comparison.at_errors
    np.testing.assert_allclose(at.alone, 1 - np.asarray(log.correct).mean(0), atol=1e-12)
    np.testing.assert_allclose(at.saved.mean, at.cost[0] - at.cost, rtol=1e-9, atol=1e-18)
    assert (at.saved.mean[0] == 0).all()
    assert (at.saved.se[0] == 0).all()
    assert (at.saved.mean[1] > 2 * at.saved.se[1]).any()
    assert (np.diff(at.limits) > 0).all()


@pytest.mark.thorough
def test_beside_the_cheapest_stands_the_one_that_errs_least(selection):
    chosen, _ = selection
    frontier, at = chosen.frontier, chosen.comparison.at_errors
    limit = float(np.sort(at.alone)[1]) + 1e-6  # two models keep to it
    better = dataclasses.replace(at, saved=Gain(np.full_like(at.cost, 1e-5), np.full_like(at.cost, 1e-7)))
    comparison = dataclasses.replace(chosen.comparison, at_errors=better)
    pair = int(np.flatnonzero(np.asarray(frontier.members).sum(1) == 2)[0])
    said = dataclasses.replace(chosen, comparison=comparison).verdict(pair, {"max_error": limit})
    surest = frontier.models[int(at.alone.argmin())]
    assert re.search(rf"this limit\), on queries left out, and \d+ % less than {surest}, of the least error$", said)
