"""A diagnosis as a whole: its figures, folds and files; predictions and promises."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers.cross_validation_references import dealt

import rcjax
from rcjax.logs import LogError
from rcjax.model.calibrated_models import fit_calibrated
from rcjax.model.calibration import expected_calibration_error
from rcjax.model.label_outcomes import FOLDS
from rcjax.tuning.cross_validation import held_out_confidence
from rcjax.tuning.diagnostics.diagnosis import (
    HeldOutPart,
    compare_frontier,
    held_out_parts,
    is_training_log,
    measure_promise,
    without,
)
from rcjax.tuning.diagnostics.findings import FINDING_KINDS
from rcjax.tuning.tune import summarise_single_models

pytestmark = pytest.mark.usefixtures("float64")

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
N, REPLICATES = 200, 50


@pytest.fixture(scope="module")
def logs(float64):
    """(training, fresh) logs of N queries each."""
    log = rcjax.sample_log(2 * N, seed=0).select(MODELS)
    return log.take(slice(N)), log.take(slice(N, None))


@pytest.fixture(scope="module")
def model(logs):
    return rcjax.fit(logs[0])


@pytest.fixture(scope="module")
def found(model, logs):
    return rcjax.diagnose(model, logs[0], replicates=REPLICATES)


@pytest.fixture(scope="module")
def found_fresh(model, logs):
    return rcjax.diagnose(model, logs[1], training=logs[0], replicates=REPLICATES)


# -- what was found


@pytest.mark.thorough
def test_every_model_has_its_findings(found):
    subjects = {name: [finding.subject for finding in found.findings if finding.name == name] for name in FINDING_KINDS}
    each = ("accuracy", "calibration error", "separation", "certain answers")
    assert all(subjects.pop(name) == list(MODELS) for name in each)
    named = {name: names for name, names in subjects.items() if names}
    assert named == {"queries": [""], "predicted error": [""], "predicted cost": [""]}
    assert {finding.verdict for finding in found.findings} <= {"fine", "doubtful", "bad"}
    assert all((finding.advice == "") == (finding.verdict == "fine") for finding in found.findings)
    worst = max(found.findings, key=lambda finding: ("fine", "doubtful", "bad").index(finding.verdict))
    assert found.verdict == worst.verdict
    assert (found.n_queries, found.models, found.source) == (N, MODELS, "rcjax demo (synthetic)")


@pytest.mark.thorough
def test_the_json_has_every_field(found, found_fresh):
    for each in (found, found_fresh):
        text = json.dumps(each.to_json(), allow_nan=False)
        document = json.loads(text)
        fields = {field.name for field in dataclasses.fields(each)} - {"confidence", "correct"}
        assert set(document) == fields | {"verdict", "findings", "remarks"}
        assert [finding["figure"] for finding in document["findings"]] == [finding.figure for finding in each.findings]


def test_the_p_value_of_a_separation_is_that_of_its_figure(found_fresh):
    """It was that of the log tuned on, whatever the fresh log showed."""
    for j, row in enumerate(found_fresh.calibration):
        right = np.asarray(found_fresh.correct[:, j], bool)
        of_right, of_wrong = (found_fresh.confidence[part, j] for part in (right, ~right))
        reference = scipy.stats.mannwhitneyu(of_right, of_wrong, use_continuity=False, method="asymptotic").pvalue
        assert row.separation_p == pytest.approx(reference, rel=1e-3)


@pytest.mark.thorough
def test_figures_are_held_out(found, found_fresh, model, logs):
    assert (found.held_out, found_fresh.held_out) == (False, True)
    np.testing.assert_allclose(found_fresh.confidence, model.calibrate(logs[1].logprob))
    np.testing.assert_array_equal(found_fresh.correct, logs[1].correct)
    assert not np.isin(found.confidence, np.asarray(model.calibrate(logs[0].logprob))).any()
    np.testing.assert_allclose(found.correct.mean(0), np.asarray(logs[0].correct).mean(0))
    alone = summarise_single_models(logs[0], model)
    for each in (found, found_fresh):
        for j, row in enumerate(each.calibration):
            error = expected_calibration_error(each.confidence[:, j], each.correct[:, j])
            assert row.calibration_error == pytest.approx(error, abs=1e-9)
            # A logistic regression is right on average on its own log, and the marginal nearly so.
            near = 0.01 if each.held_out else 1e-6  # on its own log it is counted
            assert row.expected_accuracy == pytest.approx(np.asarray(logs[0].correct)[:, j].mean(), abs=near)
    assert [row.calibration_error for row in found.calibration] == [
        pytest.approx(one.calibration_error, abs=1e-9) for one in alone
    ]


def test_a_log_with_too_few_complete_queries_is_refused(model, logs):
    with pytest.raises(LogError, match=r"llama3\.1-8b"):
        rcjax.diagnose(model, logs[1].select([MODELS[0], MODELS[2]]))
    with pytest.raises(LogError, match="19 queries were answered by every model"):
        rcjax.diagnose(model, logs[1].take(slice(19)))
    answered = np.asarray(logs[1].answered) & (np.arange(N) < 19)[:, None] | (np.arange(3) < 2)
    holes = dataclasses.replace(logs[1], answered=jnp.asarray(answered))
    least = r"first of all llama3\.1-70b, which answered 19 of 200, or log more"
    with pytest.raises(LogError, match=f"19 queries were answered by every model, .* needs 20: .*{least}"):
        rcjax.diagnose(model, holes)


# -- predictions


def test_folds_hold_every_query_once(model, logs):
    log = logs[0]
    assert is_training_log(model, log)
    assert not is_training_log(model, logs[1])
    held = held_out_parts(model, log, folds=True, seed=3)
    assert len(held) == FOLDS
    assert sorted(query for _, part, _ in held for query in part.queries) == list(range(N))
    for fitted, some, _ in held:
        assert fitted.provenance["answers"] == dict.fromkeys(MODELS, N - some.n_queries)
        assert some.n_queries == N / FOLDS
    confidence = held_out_confidence(log, model, seed=3)
    for fitted, some, _ in held:
        rows = np.isin(log.queries, some.queries)
        np.testing.assert_allclose(confidence[rows], fitted.calibrate(some), rtol=1e-6)
    assert held_out_parts(model, log, folds=False) == [HeldOutPart(model, log)]


def test_the_model_of_a_fold_does_not_see_the_fold(model, logs):
    """Answers of the first fold turned over and its confidences moved: its model stays as it was."""
    log = logs[0]
    (one, part, _), (other, *_), *_ = held_out_parts(model, log, folds=True)
    rows = np.isin(log.queries, part.queries)[:, None]
    turned = dataclasses.replace(log, correct=log.correct ^ rows, logprob=jnp.where(rows, -0.3, log.logprob))
    (same, *_), (changed, *_), *_ = held_out_parts(model, turned, folds=True)
    np.testing.assert_array_equal(same.calibrators.coefficients, one.calibrators.coefficients)
    np.testing.assert_array_equal(same.marginals.a, one.marginals.a)
    np.testing.assert_array_equal(same.copulas.theta, one.copulas.theta)
    np.testing.assert_array_equal(same.cost, one.cost)
    assert not np.allclose(changed.calibrators.coefficients, other.calibrators.coefficients)


# -- the promise


@pytest.fixture(scope="module")
def tuned(model, logs):
    return rcjax.tuning.select_frontier(logs[0], model=model).frontier


@pytest.mark.thorough
def test_the_promise_on_fresh_queries_is_the_frontier_that_was_tuned_replayed(found_fresh, tuned, logs):
    """Policy by policy, each chosen as a user would by its λ."""
    promise = found_fresh.promise
    assert promise.search == "labels"
    for place in range(0, len(promise.lam), 5):
        policy = tuned.policy(lam=float(promise.lam[place]))
        seen = rcjax.replay(policy, logs[1])
        figures = {"predicted_error": policy.expected["error"], "predicted_cost": policy.expected["cost"]}
        figures |= {"error": seen.error, "cost": seen.spent}
        for name, value in figures.items():
            assert getattr(promise, name)[place] == pytest.approx(float(value), rel=1e-6, abs=1e-12), name


@pytest.mark.thorough
def test_the_promise_in_folds_is_that_of_the_search_without_each(found, logs):
    log, promise = logs[0], found.promise
    places = [0, 8, 15]
    fold, figures = dealt(log.queries, log.complete, FOLDS, 0), []
    for number in range(FOLDS):
        rest = without(
            log, fold == number
        )  # whose contest deals all rows, gaps among them: luck has a say in the choice
        again = rcjax.tuning.select_frontier(rest, lam=promise.lam[places], seed=1).frontier  # its own folds
        seen = rcjax.replay(again, log.take(fold == number))
        figures.append([again.error, again.cost, seen.error, seen.spent])
    expected = dict(zip(("predicted_error", "predicted_cost", "error", "cost"), np.mean(figures, 0), strict=True))
    for name in ("error", "cost", "predicted_cost"):
        np.testing.assert_allclose(getattr(promise, name)[places], expected[name], rtol=1e-6, err_msg=name)
    # Luck is averaged over folds within the folds, which are dealt otherwise.
    np.testing.assert_allclose(promise.predicted_error[places], expected["predicted_error"], atol=0.02)


def test_a_promise_that_is_too_good_is_found_out(tuned, model, logs):
    rosy = dataclasses.replace(tuned, error=tuned.error - 0.15)
    promise = measure_promise(rosy, [HeldOutPart(model, logs[1])], N)
    assert next(promise.findings()).verdict == "bad"
    honest = measure_promise(tuned, [HeldOutPart(model, logs[1])], N)
    np.testing.assert_allclose(honest.predicted_error - promise.predicted_error, 0.15)
    assert next(honest.findings()).verdict != "bad"


@pytest.mark.parametrize("name", ["spent", pytest.param("cost", marks=pytest.mark.thorough)])
def test_bills_are_compared_with_bills_and_mean_costs_with_mean_costs(tuned, model, logs, name):
    frontier = tuned if name == "spent" else rcjax.solve_frontier(model, lam=[300.0, 3000.0])
    comparison, replayed = compare_frontier([(frontier, logs[1])], None), rcjax.replay(frontier, logs[1])
    np.testing.assert_allclose(comparison.cost, getattr(replayed, name))
    wider = compare_frontier([(frontier, logs[1])], logs[1].n_queries).error_band  # as many were learnt from
    np.testing.assert_allclose([comparison.error_band, wider], 1.645 * np.outer([1, np.sqrt(2)], replayed.error_se))


def test_the_accuracy_on_the_training_log_is_the_one_that_a_tuning_counts(model, logs):
    """It was the mean confidence by the paper's model, 12.7 % error where the table of the models said 12.3."""
    found = rcjax.diagnose(model, logs[1], training=logs[0], replicates=20)
    alone = summarise_single_models(logs[0], model)
    accuracies = [row.expected_accuracy for row in found.calibration]
    assert accuracies == pytest.approx([one.accuracy for one in alone], abs=1e-6)


def test_a_model_of_the_default_search_is_judged_by_its_training_log(logs):
    model = fit_calibrated(logs[0])
    here = rcjax.diagnose(model, logs[0], replicates=20)
    assert not here.held_out
    for found in here.calibration:
        assert found.accuracy == pytest.approx(found.expected_accuracy)
    assert rcjax.diagnose(model, logs[1], training=logs[0], replicates=20).held_out
    with pytest.raises(ValueError, match="give its training log"):
        rcjax.diagnose(model, logs[1], replicates=20)


@pytest.mark.thorough
def test_a_diagnosis_without_a_frontier_has_no_promise(model, logs):
    assert rcjax.diagnose(model, logs[1], replicates=20).promise is None
