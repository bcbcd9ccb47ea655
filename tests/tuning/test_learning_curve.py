"""The learning curve: its deals and sizes, the power law, what it foretells, and the logs that have none."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement_logs import make_log

import rcjax
from rcjax.logs import IncompleteLogWarning, Log, LogError
from rcjax.replaying.curves import area_under_curve
from rcjax.replaying.walk import outcomes_on_log
from rcjax.solving.lambda_grid import lam_range
from rcjax.tuning import learning_curve as learning
from rcjax.tuning.choices import tune_by_labels
from rcjax.tuning.judging import AS_USUAL
from rcjax.tuning.learning_curve import LearningCurve, area_of_points, fit_power_law, learning_curve

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
N = 150


def sampled(n: int = N, seed: int = 0) -> Log:
    return rcjax.sample_log(n, seed=seed).select(MODELS)


def with_gaps(log: Log, gaps: np.ndarray) -> Log:
    """The log without the first model's answers to some queries."""
    answered = np.array(log.answered)
    answered[gaps, 0] = False
    logprob, query_cost = (np.array(matrix) for matrix in (log.logprob, log.query_cost))
    logprob[~answered], query_cost[~answered] = np.nan, 0.0
    matrices = {"logprob": logprob, "correct": np.array(log.correct) & answered, "query_cost": query_cost}
    return dataclasses.replace(log, **matrices, answered=answered).take(slice(None))  # which averages the costs


def made(law: tuple[float, float, float] = (0.2, 0.5, 0.7), labels: int = 400, spread: float = 0.1) -> LearningCurve:
    """A curve that is a power law, with replicates of gains around its own."""
    sizes = np.geomspace(25, 320, 7).round().astype(int)
    area = law[0] + law[1] * sizes ** -law[2]
    replicates = np.tile(law, (101, 1))
    replicates[:, 1] *= 1 + spread * np.linspace(-1, 1, 101)
    return LearningCurve(sizes, area, 0.01 * area, np.ones(7), labels, *law, replicates, (1.0, 16.0))


@pytest.fixture(scope="module")
def curve(float64):
    return learning_curve(sampled())


# -- logs with answers


@pytest.mark.thorough
def test_where_agreement_pays_the_curve_is_of_policies_that_compare_answers():
    with_answers = learning_curve(make_log(200, 0.0, seed=1), repeats=3)
    without = learning_curve(make_log(200, 0.0, seed=1, answers=False), repeats=3)
    assert with_answers.agreement
    assert not without.agreement
    assert (with_answers.area < 0.95 * without.area).all()
    assert (with_answers.loss < without.loss).all()
    np.testing.assert_array_equal(with_answers.queries, without.queries)
    assert with_answers.to_json()["agreement"] is True


@pytest.mark.parametrize("seed", range(3))
def test_where_agreement_is_worthless_the_curve_is_the_one_without_answers(seed):
    with_answers = learning_curve(make_log(150, 1.0, seed), repeats=2)
    without = learning_curve(make_log(150, 1.0, seed, answers=False), repeats=2)
    assert not with_answers.agreement
    np.testing.assert_array_equal(with_answers.area, without.area)
    np.testing.assert_array_equal(with_answers.replicates, without.replicates)


def test_two_models_have_nobody_to_ask_where_they_differ():
    assert not learning_curve(make_log(100, 0.0, seed=0).select(["small", "large"]), repeats=2).agreement


@pytest.mark.thorough
def test_a_deal_with_answers_is_a_replay_of_policies_that_compare_them():
    log = make_log(100, 0.0, seed=3)
    tests, others = np.arange(20)[None], np.arange(20, 100)[None]
    lam = np.array([50.0, 500.0, 5000.0])
    error, cost = learning.tune_and_answer(log, lam, tests, others, np.array([80]), compare=True)
    model = rcjax.fit(log.take(others[0]))
    rows = (np.asarray(values)[others[0]] for values in (log.logprob, log.correct, log.answered, log.answer))
    policies = tune_by_labels(model.calibrators, tuple(rows), log.cost, lam)
    assert policies.agreements is not None
    assert policies.agreements.compares.any()
    fates = outcomes_on_log(
        model.calibrators,
        *(np.asarray(values)[tests[0]] for values in (log.logprob, log.correct, log.answered)),
        log.cost,
        policies,
        np.asarray(log.answer)[tests[0]],
    )
    np.testing.assert_allclose(error[0, 0], fates.wrong.mean(-1), rtol=1e-9)
    np.testing.assert_allclose(cost[0, 0], fates.cost.mean(-1), rtol=1e-9)


# -- the curve of a log


@pytest.mark.thorough
def test_sizes_and_figures(curve):
    assert curve.queries[0] == 20
    assert curve.queries[-1] == N - N // 5
    assert (np.diff(curve.queries) > 0).all()
    for each in (curve.area, curve.area_se, curve.loss):
        assert each.shape == curve.queries.shape == (7,)
        assert (each > 0).all()
    assert curve.labels == N
    assert curve.replicates.shape == (400, 3)
    cost = np.asarray(sampled().cost)
    assert curve.cost_range == pytest.approx((cost.min(), cost.max()))
    assert 0.5 <= curve.exponent <= 1
    assert curve.asymptote >= 0
    assert curve.coefficient >= 0
    # Areas are errors, between that of the best model and the worst one's.
    wrong = 1 - np.asarray(sampled().correct).mean(0)
    assert (curve.area < wrong.max()).all()
    assert (curve.area > 0.5 * wrong.min()).all()


def test_small_subsets_without_errors_are_left_out():
    assert learning._sizes(1000, 800, 0.2)[[0, -1]].tolist() == [62, 800]
    assert learning._sizes(1000, 800, 0.04)[0] == 100
    assert learning._sizes(1000, 800, 0.001)[0] == learning._sizes(1000, 800, 0.0)[0] == 200
    for n in (40, 60, 100):
        found = learning._sizes(n, n - n // 5, 0.02)
        assert found[0] == 20
        assert (np.diff(found) > 0).all()


def test_more_labels_are_not_worse(curve):
    assert curve.area[-1] < curve.area[0]
    assert curve.loss[-1] < curve.loss[0]
    sizes = np.arange(20, 3 * N)
    assert (np.diff(curve.predict(sizes)) <= 0).all()
    np.testing.assert_allclose(curve.predict(curve.queries), curve.area, rtol=0.05)
    expected, low, high = curve.gain(N)
    assert 0 <= low <= expected <= high < 50


@pytest.mark.thorough
def test_the_same_seed_is_the_same_curve(curve):
    again, other = learning_curve(sampled()), learning_curve(sampled(), seed=1)
    for field in dataclasses.fields(curve):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(curve, field.name))
    assert (other.area != curve.area).any()
    np.testing.assert_allclose(other.area, curve.area, atol=2 * float(curve.area_se.max()))


def test_every_query_is_held_out_equally_often():
    tests, others = learning._deals(N + 3, 4, seed=0)
    assert tests.shape == (20, 30)
    assert others.shape == (20, N + 3 - 30)
    assert (np.sort(np.concatenate([tests, others], 1), 1) == np.arange(N + 3)).all()
    counts = np.bincount(tests.ravel(), minlength=N + 3)
    assert counts.max() == 4
    assert counts.sum() == 4 * N  # the three left over of each repeat are tuned on only
    assert len(np.unique(np.sort(others[:5, :20], 1), axis=0)) == 5


@pytest.mark.thorough
def test_a_deal_is_a_replay_of_what_the_log_says(monkeypatch):
    """Tuned on all of the others, every policy answers the queries held out as a frontier of the same policies does.

    With each answer at its model's mean cost, and labels weighted as is usual.
    """
    monkeypatch.setattr("rcjax.tuning.select.judging_of", lambda *_: AS_USUAL)
    log = sampled()
    tests, others = learning._deals(N, 2, seed=0)
    lam = lam_range(np.asarray(log.cost), 24)
    error, cost = learning.tune_and_answer(log, jnp.asarray(lam), tests[:1], others[:1], np.array([120]))
    assert error.shape == cost.shape == (1, 1, 24)
    train, held_out = log.take(others[0]), log.take(tests[0])
    train = dataclasses.replace(train, cost=log.cost, query_cost=jnp.broadcast_to(log.cost, train.query_cost.shape))
    frontier = rcjax.tuning.select_frontier(train, lam=lam).frontier
    seen = rcjax.replay(frontier, held_out)
    np.testing.assert_allclose(error[0, 0], seen.error, atol=1e-12)
    charged = np.asarray(held_out.cost) / np.asarray(log.cost)
    assert charged.std() / charged.mean() < 1e-6  # the lengths of queries scale all costs alike
    np.testing.assert_allclose(cost[0, 0] * charged.mean(), seen.cost, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::rcjax.logs.IncompleteLogWarning")
def test_queries_with_gaps_do_not_count():
    log = sampled(N + 12)
    gaps = np.arange(3, 15)
    assert issubclass(IncompleteLogWarning, UserWarning)
    seen, expected = learning_curve(with_gaps(log, gaps)), learning_curve(log.take(np.delete(np.arange(N + 12), gaps)))
    assert seen.labels == N
    np.testing.assert_array_equal(seen.area, expected.area)


def test_a_model_that_is_always_right():
    log = sampled()
    right = np.array(log.correct)
    right[:, -1] = True
    found = learning_curve(dataclasses.replace(log, correct=jnp.asarray(right)))
    assert np.isfinite(found.area).all()
    assert np.isfinite(found.replicates).all()
    assert found.area[-1] > 0
    everyone = learning_curve(dataclasses.replace(log, correct=jnp.ones_like(log.correct)))
    np.testing.assert_array_equal(everyone.area, 0.0)
    assert everyone.gain(100) == (0.0, 0.0, 0.0)
    assert everyone.advice().endswith("less than 0.1 % (at most 0.1 %): more labels are not what this log lacks")


@pytest.mark.thorough
def test_float32_agrees(curve):
    log = sampled()
    names = ("logprob", "correct", "query_cost", "answered", "cost")
    columns = {name: np.asarray(getattr(log, name)) for name in names}
    with jax.enable_x64(False):
        rough = learning_curve(dataclasses.replace(log, **{name: jnp.asarray(each) for name, each in columns.items()}))
    # A threshold on the other side of a tie moves a query.
    np.testing.assert_allclose(rough.area, curve.area, rtol=0.03)
    assert rough.gain(N)[0] == pytest.approx(curve.gain(N)[0], abs=1.0)


@pytest.mark.thorough
def test_a_second_call_compiles_nothing(curve, compilations):
    other = sampled(seed=7)
    with compilations() as compiled:
        learning_curve(other, seed=3)
    assert not compiled


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda log: log.take(slice(39)), LogError, "39 of 39 queries were answered by every model: .* at least 40"),
        (lambda log: with_gaps(log, np.arange(120)), LogError, "30 of 150 queries were answered"),
        (lambda log: log.select(MODELS[:1]), LogError, "all models cost the same"),
    ],
)
@pytest.mark.filterwarnings("ignore::rcjax.logs.IncompleteLogWarning")
def test_logs_without_a_curve_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        learning_curve(change(sampled()))


# -- the area of one curve


def test_the_area_reaches_both_ends():
    cost, error = np.array([4.0, 2.0, 3.0]), np.array([0.1, 0.5, 0.2])
    whole = area_under_curve([1, 2, 3, 4, 10], [0.5, 0.5, 0.2, 0.1, 0.1], 1, 10)
    assert area_of_points(cost, error, 1.0, 10.0) == pytest.approx(whole)
    assert area_of_points(cost, error, 2.5, 3.5) == area_under_curve(cost, error, 2.5, 3.5)
    assert area_of_points([2.0], [0.3], 1.0, 4.0) == pytest.approx(0.3)
    both = area_of_points(np.stack([cost, cost[::-1]]), np.stack([error, error]), 1.0, 10.0)
    assert both.tolist() == [area_of_points(each, error, 1.0, 10.0) for each in (cost, cost[::-1])]


# -- the power law


@pytest.mark.parametrize("law", [(0.2, 0.5, 0.7), (0.0, 1.0, 0.5), (0.1, 3.0, 1.0), (0.05, 0.0, 0.5)])
def test_points_of_a_power_law_are_recovered(law):
    sizes = np.geomspace(20, 800, 7)
    area = law[0] + law[1] * sizes ** -law[2]
    np.testing.assert_allclose(fit_power_law(sizes, area), law, atol=1e-9)
    # Exact points outweigh what was expected of the exponent.
    np.testing.assert_allclose(fit_power_law(sizes, area, np.full(7, 1e-16), law[2]), law, atol=1e-9)


def test_how_hard_the_queries_of_a_deal_are_has_no_say_in_the_weights():
    """It moves the areas of all sizes alike, far more here than their own noise, which is greatest with few queries."""
    rng = np.random.default_rng(0)
    sizes = np.array([20, 40, 80, 160, 320])
    noise = rng.standard_normal((10, 5)) * [0.05, 0.03, 0.01, 0.003, 0.001]
    hard = rng.standard_normal(10)
    areas = 1.0 + 2.0 * sizes**-0.6 + noise
    law, _ = learning._fitted(sizes, areas, 1.0, 0)
    moved, _ = learning._fitted(sizes, areas + (hard - hard.mean())[:, None], 1.0, 0)
    np.testing.assert_allclose(moved, law, rtol=1e-9)
    beside = areas - areas.mean(0) - (areas - areas.mean(0)).mean(1, keepdims=True)
    weighted = fit_power_law(sizes, areas.mean(0), beside.var(0, ddof=1), learning.EXPONENT)
    np.testing.assert_allclose(law, weighted, rtol=1e-9)


def test_laws_are_fitted_side_by_side():
    sizes = np.geomspace(20, 800, 7)
    laws = np.array([[(0.2, 0.5, 0.7)], [(0.1, 2.0, 0.9)]])
    areas = laws[..., :1] + laws[..., 1:2] * sizes ** -laws[..., 2:]
    assert areas.shape == (2, 1, 7)
    np.testing.assert_allclose(fit_power_law(sizes, areas), laws, atol=1e-9)


def test_curves_that_rise_are_flat_and_areas_are_not_negative():
    sizes = np.geomspace(20, 800, 7)
    a, b, _ = fit_power_law(sizes, 0.1 + 1e-4 * sizes)
    assert b == 0
    assert a == pytest.approx((0.1 + 1e-4 * sizes).mean())
    a, b, c = fit_power_law(sizes, 5.0 / sizes**1.5)
    assert a == 0
    assert b > 0
    assert c == 1


def test_noisy_points_leave_the_exponent_where_it_is_expected():
    sizes = np.geomspace(20, 320, 7)
    noise = 0.01 * np.random.default_rng(0).standard_normal((200, 7))
    areas = 0.2 + 0.3 * sizes**-0.7 + noise
    exponents = fit_power_law(sizes, areas, np.full(7, 1e-4), 0.85)[:, 2]
    assert abs(exponents.mean() - 0.85) < 0.03
    assert exponents.std() < 0.5 * fit_power_law(sizes, areas)[:, 2].std()


def test_a_point_without_weight_does_not_matter():
    sizes = np.geomspace(20, 800, 7)
    area = 0.2 + 0.5 * sizes**-0.7
    area[0] += 0.05
    found = fit_power_law(sizes, area, np.array([1e3, *[1e-6] * 6]))
    np.testing.assert_allclose(found, (0.2, 0.5, 0.7), rtol=1e-3)


# -- what it foretells


def test_gains_are_those_of_the_law():
    curve = made()
    now, later = (0.2 + 0.5 * n**-0.7 for n in (400, 600))
    assert curve.predict(600) == pytest.approx(later)
    np.testing.assert_allclose(curve.predict([400, 600]), [now, later])
    expected, low, high = curve.gain(200)
    assert expected == pytest.approx(100 * (1 - later / now))
    ends = [100 * (1 - (0.2 + b * 600**-0.7) / (0.2 + b * 400**-0.7)) for b in (0.455, 0.545)]
    assert (low, high) == pytest.approx(ends)
    wide, narrow = curve.gain(200, level=0.98), curve.gain(200, level=0.2)
    assert wide[1] < low < narrow[1] < expected < narrow[2] < high < wide[2]
    assert curve.gain(0) == (0, 0, 0)
    shares = curve.relative_area([100, 400, 800])
    assert [each.shape for each in shares] == [(3,)] * 3
    assert [each[1] for each in shares] == [100, 100, 100]


def test_the_advice_is_a_sentence():
    expected, low, high = made().gain(200)
    text = "another 200 labels would lower the area under the error–cost curve by"
    assert made().advice() == f"{text} about {expected:.1f} % ({low:.1f} to {high:.1f} %)"
    tiny = made((0.2, 0.01, 0.7))
    assert tiny.advice() == f"{text} less than 0.1 % (at most 0.1 %): more labels are not what this log lacks"
    assert made().advice(1).startswith("another label would lower")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda curve: curve.predict(1201), "400 labels tell little about 1201: ask about 1200 queries"),
        (lambda curve: curve.predict([100, 5000]), "tell little about 5000"),
        (lambda curve: curve.gain(801), "tell little about 1201"),
        (lambda curve: curve.predict(0), "for 0 queries: give 1 or more"),
        (lambda curve: curve.predict(np.nan), "for nan queries"),
        (lambda curve: curve.gain(-5), "more is -5"),
        (lambda curve: curve.gain(5, level=90), "level is 90"),
        (lambda curve: learning_curve(sampled(), repeats=1), "repeats is 1"),
    ],
)
def test_questions_beyond_the_log_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(made())


def test_json_has_everything_but_the_replicates(curve):
    data = json.loads(json.dumps(curve.to_json(), allow_nan=False))
    names = {field.name for field in dataclasses.fields(curve)}
    assert set(data) == names - {"replicates"} | {"gains"}
    for name in ("queries", "area", "area_se", "loss"):
        np.testing.assert_array_equal(data[name], getattr(curve, name))
    assert [gain["more"] for gain in data["gains"]] == [N // 2, N]
    assert tuple(data["gains"][1][name] for name in ("gain", "low", "high")) == curve.gain(N)


@pytest.mark.thorough
def test_the_gain_foretold_is_what_happens():
    """Mean over logs of the gain from twice the labels, against tuning on twice as many fresh queries."""
    n, logs, judges = 150, 16, 4000
    foretold = [learning_curve(sampled(n, seed=seed), repeats=6).gain(n) for seed in range(logs)]
    draws = 150
    log = sampled(2 * n * draws + judges, seed=1000)
    cost = np.asarray(log.cost)
    lam = jnp.asarray(lam_range(cost, 24))
    others = np.arange(2 * n * draws).reshape(draws, 2 * n)
    tests = np.broadcast_to(np.arange(2 * n * draws, log.n_queries), (draws, judges))
    error, charge = learning.tune_and_answer(log, lam, tests, others, np.array([n, 2 * n]))
    before, after = area_of_points(charge, error, cost.min(), cost.max()).T
    gain = 100 * (before - after) / before.mean()
    expected, low, high = np.array(foretold).T
    noise = np.hypot(expected.std() / np.sqrt(logs), gain.std() / np.sqrt(draws))
    assert abs(expected.mean() - gain.mean()) < 3 * noise
    assert ((low <= gain.mean()) & (gain.mean() <= high)).mean() > 0.6
