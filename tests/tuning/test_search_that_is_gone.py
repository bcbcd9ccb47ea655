"""Policies of least expected loss, a search that is gone: files of before are used, and tuned again by the default."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run, succeed, write_log

import rcjax
from rcjax.diagnostics.held_out import held_out
from rcjax.diagnostics.promise import try_promise
from rcjax.policy.spec import Spec
from rcjax.tuning.retune import held_out_gain, recorded_tuning
from rcjax.tuning.select import find_frontier

pytestmark = pytest.mark.usefixtures("float64")
FILES = Path(__file__).parents[1] / "files_of_before"
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
GONE = "search of least expected loss is gone, as it was measured to lose against the default: "


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(200, seed=3).select(MODELS)


@pytest.fixture(scope="module")
def policy(float64):
    return rcjax.load_policy(FILES / "policy_expected.json")


@pytest.fixture(scope="module")
def frontier(float64):
    return rcjax.load_frontier(FILES / "frontier_expected.json")


@pytest.mark.thorough
def test_files_of_before_are_replayed_and_checked(log, policy, frontier):
    assert (frontier.search, frontier.cascades) == ("expected", "all")
    assert policy.models == MODELS
    by_policy, by_frontier = rcjax.replay(policy, log), rcjax.replay(frontier, log)
    np.testing.assert_allclose(by_policy.error, by_frontier.error[0])
    checked = rcjax.check_policy(policy, log)
    assert sum(GONE in remark for remark in checked.remarks) == 1


@pytest.mark.thorough
def test_it_is_tuned_again_by_the_default_search(log, policy):
    tuning = recorded_tuning(policy)
    assert (tuning.spec.search, tuning.spec.target) == ("selected", {"error_cost": 0.01})
    retuned = rcjax.retune(policy, log, bands=False)
    assert retuned.frontier.search == "selected"
    assert retuned.policy.provenance["tuning"]["search"] == "selected"
    assert "cascades" not in retuned.policy.provenance["tuning"]
    assert sum(GONE + "tuned by the default search, among all cascades" in one for one in retuned.remarks) == 1
    again = rcjax.retune(retuned.policy, log, bands=False)
    assert not any(GONE in one for one in again.remarks)
    gain = held_out_gain(policy, log)
    assert gain is not None
    assert np.isfinite(gain.gain.mean)


def test_what_would_need_that_search_says_what_to_do(log, frontier):
    small = log.take(slice(100))
    with pytest.raises(ValueError, match=GONE + "tune again, or use refit=False"):
        rcjax.tuning.bootstrap(frontier, small, replicates=20)
    assert rcjax.tuning.bootstrap(frontier, small, replicates=20, refit=False).error.shape == (4, 2)
    fresh = try_promise(frontier, held_out(frontier.model, small, folds=False), 60)
    assert fresh["search"] == "expected"
    with pytest.raises(ValueError, match=GONE + "tune again, or give held-out queries instead"):
        try_promise(frontier, held_out(frontier.model, small, folds=True), 60)
    with pytest.raises(ValueError, match=GONE + "leave it out"):
        find_frontier(small, frontier.model, Spec(search="expected"))
    with pytest.raises(ValueError, match=GONE + "leave posterior out"):
        rcjax.tune(small, posterior=True)


def test_the_option_is_hidden_and_commands_take_the_files(log, tmp_path):
    assert "--posterior" not in run("tune", "--help").stdout
    columns = [np.asarray(column).tolist() for column in (log.logprob, log.correct, log.query_cost)]
    rows = [
        (query, name, *(column[query][place] for column in columns), 0, 0)
        for query in range(log.n_queries)
        for place, name in enumerate(MODELS)
    ]
    write_log(tmp_path / "log.csv", rows)
    for file in ("policy_expected.json", "frontier_expected.json"):
        assert succeed("evaluate", FILES / file, tmp_path / "log.csv")
    retuned = run("retune", FILES / "policy_expected.json", tmp_path / "log.csv", "--no-bands", "--json")
    assert GONE in str(json.loads(retuned.stdout)["remarks"])
