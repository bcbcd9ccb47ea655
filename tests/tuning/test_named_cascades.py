"""A cascade that is named goes by confidences alone; older files in which one compares answers serve all the same."""

import dataclasses

import jax
import numpy as np
import pytest
from agreement_logs import MODELS, make_log

import rcjax
from rcjax.frontier.policies import Agreements
from rcjax.replaying.replay import replay
from rcjax.tuning.retune import held_out_gain

pytestmark = pytest.mark.usefixtures("float64")
LAM = [300.0, 1000.0]


@pytest.fixture(scope="module")
def log():
    with jax.enable_x64(True):
        return make_log(300, 0.0, seed=0)


@pytest.fixture(scope="module")
def older(log, tmp_path_factory):
    """A frontier from a file: medium's answer is compared with small's, at all λ but the first."""
    with jax.enable_x64(True):
        solved = rcjax.solve_frontier(rcjax.fit(log), cascades=[MODELS], lam=LAM)
        agreements = Agreements.none((len(LAM), 3))
        agreements.earlier[1:, 1], agreements.differ[1:, 1] = 0, 2
        policies = dataclasses.replace(solved.policies, agreements=agreements)
        path = tmp_path_factory.mktemp("older") / "frontier.json"
        dataclasses.replace(solved, policies=policies, compare="text").save(path)
        return rcjax.load_frontier(path)


@pytest.mark.thorough
def test_answers_of_the_log_change_nothing(log):
    plain = dataclasses.replace(log, answer=None, compare=None)
    one, other = (rcjax.tune(source, cascade=list(MODELS), lam=1000.0, intervals=False) for source in (log, plain))
    assert one.selection is one.verdict is None
    assert one.policy.agreements == {}
    assert one.policy.rules == other.policy.rules
    assert one.policy.expected == other.policy.expected
    assert one.remarks == other.remarks


@pytest.mark.thorough
def test_an_older_file_is_read_and_replayed(older, log, tmp_path):
    assert older.search == (MODELS,)
    policy = older.point(1)
    assert policy.agreements["medium"].model == "large"
    policy.save(tmp_path / "policy.json")
    assert rcjax.load_policy(tmp_path / "policy.json") == policy
    assert float(replay(policy, log).error) == pytest.approx(float(replay(older, log).error[1]))
    for earlier, decision in (("a", rcjax.policy.Answer), ("b", rcjax.policy.Defer)):
        assert isinstance(policy.step("medium", confidence=0.1, answer="a", answers={"small": earlier}), decision)


def test_its_policy_is_tuned_again_without_comparing(older):
    fresh = make_log(250, 0.0, seed=5)
    for log in (fresh, dataclasses.replace(fresh, answer=None, compare=None)):
        again = rcjax.retune(older.point(1), log, bands=False)
        assert again.policy.agreements == {}
        (said,) = [remark for remark in again.remarks if "compares answers" in remark]
        assert said == (
            "the policy compares answers, and a named cascade no longer does: tuned without (rcjax tune without "
            "--cascade compares them)"
        )
    assert held_out_gain(older.point(1), fresh).n == 250


@pytest.mark.thorough
def test_its_search_is_not_done_again(older, log):
    with pytest.raises(ValueError, match=r"no longer compare answers, .*: tune again, or use refit=False"):
        rcjax.tuning.bootstrap(older, log, replicates=20)
    assert np.isfinite(rcjax.tuning.bootstrap(older, log, replicates=20, refit=False).error).all()
    with pytest.raises(ValueError, match=r"no longer compare answers, .*: tune again, or give held-out queries"):
        rcjax.diagnose(older.model, log, frontier=older, replicates=50)


@pytest.mark.thorough
def test_its_promise_is_judged_by_held_out_queries(older):
    diagnosis = rcjax.diagnose(older.model, make_log(250, 0.0, seed=5), frontier=older, replicates=50)
    assert diagnosis.promise is not None
    assert diagnosis.promise["search"] == (MODELS,)
