"""Refusals by models before the last of a cascade, are gone: files of before are used, and tuned again without."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import rcjax
from rcjax.diagnostics.held_out import held_out
from rcjax.diagnostics.promise import try_promise
from rcjax.policy.record import with_record
from rcjax.policy.spec import Spec
from rcjax.tuning.retune import recorded_tuning

pytestmark = pytest.mark.usefixtures("float64")
FILES = Path(__file__).parents[1] / "files_of_before"
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
GONE = "refusals by models before the last of a cascade are gone, as they were measured to bring nothing: "


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(200, seed=3).select(MODELS)


@pytest.fixture(scope="module")
def frontier(float64):
    return rcjax.load_frontier(FILES / "frontier_refusing.json")


@pytest.fixture(scope="module")
def policy(frontier, tmp_path_factory):
    """Of two models, which both refuse, as it was written before."""
    path = tmp_path_factory.mktemp("policies") / "policy.json"
    with_record(frontier.policy(lam=300.0), abstain_early=True).save(path)
    return rcjax.load_policy(path)


def early(policy):
    return [name for name in policy.models[:-1] if any(rule.action == "abstain" for rule in policy.rules[name])]


def test_what_is_predicted_and_replayed_is_that_of_the_policy(log, policy, frontier):
    assert early(policy) == ["llama3.1-8b"]
    by_policy, by_frontier = rcjax.replay(policy, log), rcjax.replay(frontier, log)
    np.testing.assert_allclose(by_policy.abstention, by_frontier.abstention[1])
    outcome = rcjax.solving.outcomes(frontier.model, frontier)
    for name, figure in (("error", outcome.error), ("cost", outcome.cost), ("abstention", outcome.refused)):
        np.testing.assert_allclose(getattr(frontier, name), figure, rtol=1e-7, err_msg=name)
    thresholds, refusals = (np.asarray(each)[1] for each in (frontier.thresholds, frontier.refusals))
    error, _, refused = rcjax.solving.error_and_cost(frontier.model, thresholds, policy.models, refusals=refusals)
    assert float(error) == pytest.approx(policy.expected["error"])
    assert float(refused) == pytest.approx(policy.expected["abstention"])


@pytest.mark.thorough
def test_it_is_tuned_again_with_refusals_by_the_last_model(log, policy):
    retuned = rcjax.retune(policy, log, bands=False)
    assert sum(GONE + "tuned with refusals by the last one" in one for one in retuned.remarks) == 1
    assert early(retuned.policy) == []
    assert "abstain_early" not in retuned.policy.provenance["tuning"]
    again = rcjax.retune(retuned.policy, log, bands=False)
    assert not any(GONE in one for one in again.remarks)
    assert again.frontier.abstain_price == recorded_tuning(policy).spec.abstain_price == 0.25


@pytest.mark.thorough
def test_what_would_need_them_says_what_to_do(log, frontier):
    small = log.take(slice(100))
    left_out = "abstain_early must be left out, and the last one refuses"
    calls = [
        ("tune again, or use refit=False", lambda: rcjax.tuning.bootstrap(frontier, small, replicates=20)),
        (
            "tune again, or give held-out queries instead",
            lambda: try_promise(frontier, held_out(frontier.model, small, folds=True), 60),
        ),
        (left_out, lambda: rcjax.solve_frontier(frontier.model, abstain_price=0.3, abstain_early=True)),
        (left_out, lambda: rcjax.tuning.select_frontier(small, abstain_early=False)),
        (left_out, lambda: Spec(abstain_price=0.3, abstain_early=False)),
    ]
    for message, call in calls:
        with pytest.raises(ValueError, match=GONE + message):
            call()
    assert rcjax.tuning.bootstrap(frontier, small, replicates=20, refit=False).abstention.shape == (
        len(frontier.lam),
        2,
    )
    assert dataclasses.replace(Spec(), abstain_price=0.3) == Spec(abstain_price=0.3)
