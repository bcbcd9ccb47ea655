"""Whatever the order of a log's columns: what takes a model, a policy or a frontier finds its models by their names."""

import dataclasses
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import rcjax
import rcjax.report.plots
from rcjax._core.batching import as_json_values

pytestmark = pytest.mark.usefixtures("float64")

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
ORDERS = ((MODELS[1], MODELS[2], MODELS[0]), MODELS[::-1])

#: Each public function that takes a fitted thing and a log, by name: its figures as JSON values, from the things and a
#: log. One that is new must join.
TAKES_A_LOG: dict[str, Callable[[SimpleNamespace, rcjax.Log], Any]] = {
    "CascadeModel.calibrate": lambda the, log: the.model.calibrate(log),
    "bootstrap": lambda the, log: figures_of(rcjax.tuning.bootstrap(the.frontier, log, replicates=20)),
    "certify": lambda the, log: [
        certificate_of(rcjax.certify(the.frontier, log, max_error=0.4, tuned_on=turned(the.train, log))),
        refusal_of(lambda: rcjax.certify(the.frontier, turned(the.train, log), max_error=0.4)),
    ],
    "check_policy": lambda the, log: [
        rcjax.check_policy(the.policy, log, retuning=False).to_json(),
        rcjax.check_policy(the.ladder, log, retuning=True).to_json(),
        refusal_of(lambda: rcjax.check_policy(the.policy, turned(the.train, log))),
    ],
    "diagnose": lambda the, log: [
        rcjax.diagnose(the.model, log, training=turned(the.train, log), replicates=20).to_json(),
        rcjax.diagnose(the.model, turned(the.train, log), replicates=20).held_out,
    ],
    "replay": lambda the, log: [figures_of(rcjax.replay(each, log)) for each in (the.frontier, the.policy, the.ladder)],
    "retune": lambda the, log: [
        undated(rcjax.retune(each, log, intervals=False).policy.to_json()) for each in (the.policy, the.ladder)
    ],
    "select_frontier": lambda the, log: undated(rcjax.tuning.select_frontier(log, model=the.model).frontier.to_json()),
}


def turned(log: rcjax.Log, like: rcjax.Log) -> rcjax.Log:
    """A log with its models in the order of another's."""
    return log.select(like.models)


def undated(document: dict[str, Any]) -> str:
    return re.sub(r'"date": "[^"]*"', "", json.dumps(document))


def figures_of(found: Any) -> Any:
    return as_json_values(dataclasses.asdict(found))


def certificate_of(found: Any) -> Any:
    return as_json_values(vars(found) | {"policy": found.policy.expected})


def refusal_of(call: Callable[[], Any]) -> str:
    with pytest.raises(rcjax.LogError) as told:
        call()
    return str(told.value)


@pytest.fixture(scope="module")
def the(float64) -> SimpleNamespace:
    """A log, what was tuned on one half of it, and the other half."""
    train, fresh = rcjax.sample_log(240, seed=3).select(MODELS).split(0.5, seed=0)
    model = rcjax.fit(train)
    frontier = rcjax.tuning.select_frontier(train, model=model).frontier
    budget = float(frontier.cost.mean())
    things = {"policy": frontier.policy(error_cost=0.01), "ladder": frontier.policy(budget=budget)}
    return SimpleNamespace(train=train, fresh=fresh, model=model, frontier=frontier, **things)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TAKES_A_LOG)
def test_the_order_of_the_columns_changes_nothing(name, the):
    seen = TAKES_A_LOG[name](the, the.fresh)
    for order in ORDERS:
        again = TAKES_A_LOG[name](the, the.fresh.select(order))
        assert jax.tree.structure(seen) == jax.tree.structure(again)
        for one, other in zip(
            jax.tree.leaves(as_json_values(seen)), jax.tree.leaves(as_json_values(again)), strict=True
        ):
            assert one == other or (isinstance(one, float) and np.isclose(one, other, rtol=1e-12, equal_nan=True))


@pytest.mark.thorough
def test_a_report_finds_the_models_of_its_test_log(the):
    wanted = rcjax.make_report(the.train, test=the.fresh, replicates=20).to_json()
    found = rcjax.make_report(the.train, test=the.fresh.select(MODELS[::-1]), replicates=20).to_json()
    assert undated(found) == undated(wanted)


def test_a_log_is_calibrated_by_name_and_an_array_by_place(the):
    log, model = the.fresh.select(MODELS[::-1]), the.model
    phi = np.asarray(model.calibrate(log))
    for j, name in enumerate(model.models):
        raw = np.asarray(log.logprob)[:, log.models.index(name)]
        calibrate = the.frontier.policy(lam=1.0).calibrations.get(name)
        if calibrate is not None:
            np.testing.assert_allclose(phi[:, j], [calibrate(value) for value in raw.tolist()], rtol=1e-9)
    np.testing.assert_array_equal(phi, model.calibrate(the.fresh.logprob))
    assert np.abs(phi - np.asarray(model.calibrate(log.logprob))).max() > 0.1


def test_a_log_may_hold_more_models_and_lack_answers(the):
    more = rcjax.sample_log(50, seed=9)
    np.testing.assert_array_equal(the.model.calibrate(more), the.model.calibrate(more.select(MODELS)))
    answered = np.ones((50, len(more.models)), bool)
    answered[:10] = False
    logprob = np.where(answered, np.asarray(more.logprob), np.nan)
    gaps = dataclasses.replace(more, logprob=jax.device_put(logprob), answered=jax.device_put(answered))
    assert np.isnan(np.asarray(the.model.calibrate(gaps))).sum() == 10 * len(MODELS)


def test_a_log_that_lacks_a_model_is_refused_by_its_name(the):
    with pytest.raises(rcjax.LogError, match=r"no model 'llama3\.1-70b'"):
        the.model.calibrate(the.fresh.select(MODELS[:2]))
    with pytest.raises(ValueError, match="its last axis must be the 3 models"):
        the.model.calibrate(the.fresh.select(MODELS[:2]).logprob)
