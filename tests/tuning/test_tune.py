"""The verb: what `tune` does is what its parts do one by one, and what the command prints."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers.command_line import succeed, write_folder
from tiers import thorough

import rcjax
from rcjax._base.figures import percent
from rcjax.policy import Ladder
from rcjax.policy.comparison import recorded_comparison
from rcjax.policy.ladder import Period
from rcjax.policy.policy import models_with_thresholds
from rcjax.policy.spec import Spec, Target
from rcjax.solving.frontier.frontier import InfeasibleError
from rcjax.tuning import search
from rcjax.tuning.cross_validation import CrossValidation, Gain
from rcjax.tuning.replaying.comparing import QueryLosses
from rcjax.tuning.search import estimate_blending
from rcjax.tuning.tune import _with_policy, note_certain, note_predicted, summarise_single_models, tune_in_stages

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def log(float64):
    return rcjax.sample_log(200, seed=3).select(MODELS)


@pytest.mark.parametrize("target", [{"budget": 1e-4}, {"max_error": 0.3}, {"error_cost": 0.001}, {"lam": 1500.0}])
def test_the_policy_is_that_of_the_frontier(log, target):
    tuned = rcjax.tune(log, intervals=False, **target)
    expected = tuned.frontier.policy(**target)
    assert tuned.policy is not None
    assert [rung.rules for rung in tuned.policy.rungs] == [rung.rules for rung in expected.rungs]
    assert tuned.policy.position == expected.position
    assert tuned.target == Target.of(**target)
    assert tuned.policy.provenance["tuning"].items() >= target.items()
    assert tuned.remarks[0] == tuned.advice
    assert tuned.policy.expected["cost"] == pytest.approx(float(rcjax.replay(tuned.policy, log).spent), rel=1e-9)


def test_the_order_of_the_queries_changes_no_figure(log):
    """Figures by random draws, too: intervals, and the half that a guarantee is tested on."""
    for options in ({}, {"confidence": 0.9}):
        logs = log, log.take(slice(None, None, -1))
        tuned, reversed_ = (rcjax.tune(each, max_error=0.4, **options) for each in logs)
        assert tuned.policy.expected == pytest.approx(reversed_.policy.expected, rel=1e-9)
        assert tuned.policy.provenance["kept_sample"] == reversed_.policy.provenance["kept_sample"]


def test_unanswered_queries_are_said(log):
    tuned = rcjax.tune(log, match=0.01, abstain_price=0.3, intervals=False)
    share = tuned.policy.expected["abstention"]
    assert share > 0.05
    left = f"with no answer for {percent(share)} of the queries"
    assert left in tuned.advice
    assert f"error (an abstention counts as 30 %) than {MODELS[2]} alone" in tuned.advice
    assert left in tuned.describe().splitlines()[1]
    assert f"no answer for {percent(share)}, " in str(tuned.policy)


def test_the_bill_of_today_has_no_question_that_today_does_not_ask(log):
    """A single model is not billed for the second question, which asks how sure it is."""
    asked = dataclasses.replace(log, query_cost=2 * log.query_cost, signal_cost=log.query_cost, cost=2 * log.cost)
    tuned, plain = (rcjax.tune(each, match=0.05, today=MODELS[2], intervals=False) for each in (asked, log))
    assert tuned.comparison.today.cost == pytest.approx(float(log.cost[2]))
    assert [row.cost for row in tuned.single_models] == pytest.approx(log.cost.tolist())
    assert min(tuned.frontier.cost) == pytest.approx(float(min(log.cost)))
    spent = float(rcjax.replay(tuned.policy, asked).spent)
    assert tuned.policy.expected["cost"] == pytest.approx(spent, rel=1e-6)
    assert spent > plain.comparison.cost  # but a cascade pays for the questions by whose answers it decides
    with pytest.raises(InfeasibleError, match="no cascade costs"):
        rcjax.tune(asked, budget=0.9 * float(min(log.cost)))
    rcjax.tune(asked, budget=1.1 * float(min(log.cost)), intervals=False)


def test_a_single_model_replaces_a_cascade_that_lost_on_queries_left_out():
    log = rcjax.sample_log(200, seed=5).select(MODELS)
    tuned = rcjax.tune(log, intervals=False, lam=2000.0)
    assert tuned.frontier.policy(lam=2000.0).models == MODELS[1:]
    assert tuned.policy.models == MODELS[1:2]
    column = np.asarray(log.correct)[:, 1].mean()
    assert tuned.policy.expected["error"] == pytest.approx(1 - column)
    assert tuned.policy.expected["cost"] == pytest.approx(float(log.cost[1]))
    assert any("on queries left out the best lost 3.5 ± 2.1" in note for note in tuned.notes)
    assert tuned.comparison.single is None
    assert "1 policy, for the target" in dataclasses.replace(tuned, frontier=tuned.frontier.take([0])).describe()


def test_at_a_budget_a_ladder_that_lost_on_queries_left_out_stays_with_a_note(log, monkeypatch):
    """It keeps to the budget where answers cost 40 % more, as a single model could not."""
    monkeypatch.setattr(CrossValidation, "gain", lambda *_: Gain(-0.05, 0.01))
    budget = 1.2 * float(log.cost[1])
    tuned = rcjax.tune(log, intervals=False, budget=budget)
    dearer = dataclasses.replace(log, query_cost=1.4 * log.query_cost)
    assert tuned.policy.follows
    assert QueryLosses.of(tuned.policy, dearer).spent.mean() == pytest.approx(budget)
    assert QueryLosses.of(MODELS[1], dearer).spent.mean() > 1.1 * budget
    lost = f"no cascade is shown to be better than {MODELS[1]} alone here: on queries left out the best lost "
    assert lost in tuned.advice
    assert tuned.advice.endswith("5.0 ± 1.0 points of error")
    assert recorded_comparison(tuned.policy.provenance) == tuned.comparison
    monkeypatch.undo()
    assert tuned.compare(tuned.policy, Target("budget", budget)).unsupported_gain is None  # 2.7 ± 0.9 points


@pytest.mark.parametrize(
    "cascade",
    thorough(["adaptive", "all", "full", MODELS[:2], [MODELS[:1], MODELS[1:]]], lambda how: how != "all"),
)
def test_a_search_by_the_model_is_that_of_solve_frontier(log, cascade):
    tuned = rcjax.tune(log, cascade=cascade, intervals=False, lam=1000.0)
    expected = rcjax.solve_frontier(rcjax.fit(log), cascades=Spec(cascade=cascade).cascade)
    assert tuned.cross_validation is None
    assert tuned.advice == tuned.remarks[0]
    np.testing.assert_array_equal(tuned.frontier.cost, expected.cost)


def test_the_draws_of_the_bootstrap_share_the_blending_weights_of_the_search(log, monkeypatch):
    estimated = []
    monkeypatch.setattr(search, "estimate_blending", lambda *given: estimated.append(1) or estimate_blending(*given))
    tuned = rcjax.tune(log)
    assert len(estimated) == 1
    np.testing.assert_array_equal(tuned.frontier.bands.error, rcjax.tuning.bootstrap(tuned.frontier, log).error)


def test_an_error_that_the_model_predicts_is_told_apart_from_its_interval_by_labels(log):
    """On one log the error was 27.0 %, and its interval 27.3 to 35.5 %."""
    tuned = rcjax.tune(log, cascade="all", intervals=False, lam=1000.0)
    bands = rcjax.tuning.bootstrap(tuned.frontier, log, replicates=20, refit=False)
    banded = dataclasses.replace(tuned, frontier=dataclasses.replace(tuned.frontier, bands=bands))
    note = "the error of a policy is a prediction of the model, its interval is by the labels of this log"
    assert [any(note in line for line in _with_policy(each, False).notes) for each in (tuned, banded)] == [
        False,
        True,
    ]
    assert not note_predicted(rcjax.tune(log, lam=1000.0).frontier)  # the default search corrects both


def test_the_policy_for_another_target_is_the_one_tuned_for_it(log):
    """By bills too, where the model predicts other costs."""
    tuned = rcjax.tune(log, budget=1e-4, cascade="all", intervals=False)
    other = rcjax.tune(log, budget=8e-5, cascade="all", intervals=False).policy
    found = tuned.policy_for(Target("budget", 8e-5))
    assert (found.position, found.expected["cost"]) == pytest.approx((other.position, other.expected["cost"]), rel=1e-9)


def test_another_target_has_no_guarantee_so_gains_that_are_not_supported_are_refused(log, monkeypatch):
    monkeypatch.setattr(CrossValidation, "gain", lambda *_: Gain(-0.05, 0.01))
    tuned = rcjax.tune(log, max_error=0.6, confidence=0.8, intervals=False)
    lam, target = Target("lam", 2000.0), Target("budget", 1.2 * float(log.cost[1]))
    assert len(tuned.frontier.policy(lam=2000.0).models) > 1
    assert len(tuned.policy_for(lam).models) == 1
    policy = tuned.policy_for(target)
    assert tuned.compare(policy, target).unsupported_gain is not None


def test_a_target_by_keyword_replaces_the_target_of_the_options(log):
    spec = Spec(budget=1e-4, follows=False, period=Period(100.0, "month"), intervals=False)
    tuned = rcjax.tune(log, spec, max_error=0.3)
    assert tuned.target == Target("max_error", 0.3)
    assert tuned.policy.expected["error"] <= 0.3
    assert rcjax.tune(log, spec, budget=8e-5).policy.period is None  # the period of another budget
    certificate = rcjax.certify(tuned.frontier, rcjax.sample_log(200, seed=4), Spec(match=0.1), max_error=0.6)
    assert (certificate.max_error, certificate.match) == (0.6, None)


def test_a_budget_of_nothing_is_kept_by_the_free_models(log):
    free = np.asarray(log.query_cost) * [0.0, 1.0, 1.0]
    log = dataclasses.replace(log, query_cost=free, cost=free.mean(0))
    spec = Spec(budget=0.0, intervals=False)
    tuned = rcjax.tune(log, spec)
    assert tuned.policy.models == MODELS[:1]
    assert tuned.policy.expected["cost"] == tuned.frontier.policy(budget=0.0).expected["cost"] == 0
    assert rcjax.retune(tuned.policy, log).policy.models == MODELS[:1]
    halves = dataclasses.replace(log, segment=("a", "b") * 100)
    assert rcjax.tune(halves, spec, segment="half").policy.expected["cost"] == 0
    assert spec.options_for(tuned.target) == {"budget": "0/M"}


def test_the_cost_of_the_next_error_is_that_of_the_step_to_the_dearer_neighbour(log):
    """A mean of two steps was called the cost of each further error; at the top there is no further one."""
    frontier = rcjax.tune(log, intervals=False).frontier
    corners = frontier.rung_indices
    steps = np.diff(np.asarray(frontier.cost, float)[corners]) / -np.diff(np.asarray(frontier.error, float)[corners])
    between = float(np.sqrt(steps[-2] * steps[-1]))
    told = rcjax.tune(log, error_cost=between, intervals=False).comparison
    assert told.next_error_cost == pytest.approx(steps[-1])
    top = rcjax.tune(log, error_cost=1e6, intervals=False)
    assert top.comparison.next_error_cost is None
    ladder = top.frontier.ladder(len(corners) - 1.5, Target("match", 0.01))
    mixed = top.compare(ladder, Target("match", 0.01))
    assert mixed.next_error_cost == pytest.approx(steps[-1])


def test_a_limit_that_is_as_often_exceeded_as_kept_gets_a_note(log):
    limit = 0.3
    assert any("may be above 30 % as often" in note for note in rcjax.tune(log, max_error=limit, intervals=False).notes)
    assert not any("as often as below" in note for note in rcjax.tune(log, max_error=0.99, intervals=False).notes)


def test_answers_of_confidence_1_are_noted_only_of_models_whose_threshold_reads_them(log):
    """A confidence of 1 matters only for models whose threshold decides."""
    alike = np.asarray(log.logprob).copy()
    alike[:, [1, -1]] = np.where(np.arange(log.n_queries)[:, None] % 5 < 3, 0.0, alike[:, [1, -1]])
    cascade = rcjax.tune(log, budget=1e-4, intervals=False).policy
    read = models_with_thresholds(cascade)
    noted = [note.split()[6] for note in note_certain(dataclasses.replace(log, logprob=alike), cascade)]
    assert noted == [name for name in (log.models[1], log.models[-1]) if name in read]
    assert log.models[-1] not in read
    assert note_certain(log, cascade) == []


def test_a_name_like_one_of_the_log_is_asked_about(log):
    with pytest.raises(rcjax.LogError, match=rf"did you mean '{MODELS[1]}' for 'llama-8b'\?"):
        rcjax.tune(log, match=0.01, today="llama-8b", intervals=False)


def test_an_infeasible_target_names_the_best_feasible_figure(log):
    with pytest.raises(rcjax.InfeasibleError, match="the cheapest costs") as caught:
        rcjax.tune(log, budget=1e-12, intervals=False)
    assert caught.value.tuned is None  # told before anything is fitted
    with pytest.raises(rcjax.InfeasibleError, match=r"the best errs .*: give --max-error [0-9.]+% or more") as caught:
        rcjax.tune(log, max_error=1e-6, intervals=False)
    assert caught.value.tuned.policy is None
    assert len(caught.value.tuned.frontier.lam) > 1


@pytest.mark.thorough
def test_a_guarantee_is_tested_on_queries_held_out(log):
    tuned = rcjax.tune(log, max_error=0.5, confidence=0.9, intervals=False)
    held_out, rest = log.split(0.5, seed=0)
    assert tuned.log.queries == rest.queries
    assert tuned.held_out.queries == held_out.queries
    assert tuned.certificate.n_queries == len(held_out.queries)
    assert "guaranteed with 90 % confidence" in tuned.certificate.describe("error")
    fresh = rcjax.sample_log(200, seed=4).select(MODELS[::-1])  # its columns are found by their names
    other = rcjax.tune(log, max_error=0.5, confidence=0.9, held_out=fresh, intervals=False)
    assert other.held_out.models == log.models
    with pytest.raises(rcjax.LogError, match="tuned on"):
        rcjax.tune(log, max_error=0.5, confidence=0.9, held_out=log.take(slice(100)), intervals=False)


def test_a_ladder_meets_a_budget_exactly(log):
    cost = np.asarray(rcjax.tune(log, cascade="full", intervals=False).frontier.cost)
    budget = float((cost.min() + cost.max()) / 2)
    tuned = rcjax.tune(log, cascade="full", budget=budget, intervals=False)
    assert isinstance(tuned.policy, Ladder)
    assert tuned.policy.expected["cost"] == pytest.approx(budget)
    dearest = rcjax.tune(log, cascade="full", budget=float(log.cost.sum()), intervals=False)
    assert dearest.policy.position == len(dearest.policy.rungs) - 1
    assert any("no policy has less error for it" in note for note in dearest.notes)


def test_figures_of_single_models_are_those_of_the_log(log):
    rows = summarise_single_models(log, rcjax.fit(log))
    correct = np.asarray(log.correct)
    assert [row.model for row in rows] == list(log.models)
    np.testing.assert_allclose([row.accuracy for row in rows], correct.mean(0))
    np.testing.assert_allclose([row.cost for row in rows], log.cost)
    assert all(row.answers == 200 and 0 <= row.calibration_error < 0.5 for row in rows)


def test_stages_are_reported_as_they_begin(log):
    stages = []

    def stage(words):
        stages.append(words)
        return jax.default_device(None)

    tune_in_stages(log, None, Spec(cascade="full", intervals=False), stage)
    assert stages == ["fitting the model", "choosing cascades"]


@pytest.mark.usefixtures("own_settings")
@pytest.mark.parametrize("intervals", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_command_prints_the_result_of_tune(tmp_path, intervals):
    folder, bands = write_folder(tmp_path), () if intervals else ("--no-bands",)
    line = ("tune", folder / "train.csv", "--task", "choice", "--max-error", "40%", "--json")
    printed = json.loads(succeed(*line, *bands))
    tuned = rcjax.tune(rcjax.read_log(folder / "train.csv", task="choice"), max_error=0.4, intervals=intervals)
    document = json.loads(json.dumps(tuned.to_json()))
    for one in (printed, document):
        del one["policy"]["provenance"]["date"]
    assert printed == document
