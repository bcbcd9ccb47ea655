"""The weights that blend labels with calibrated probabilities: their defaults, and a comparison with SciPy."""

import itertools

import numpy as np
import pytest
from helpers.selection_references import logistic, make_log
from scipy.optimize import minimize

from rcjax.model.calibrated_models import fit_calibrated
from rcjax.model.label_outcomes import deal_folds
from rcjax.tuning import cross_validation, search
from rcjax.tuning.candidate_scores import Blending
from rcjax.tuning.cross_validation import draw_enough
from rcjax.tuning.search import estimate_blending

pytestmark = pytest.mark.usefixtures("float64")


def test_without_enough_labels_weights_are_the_defaults():
    log = make_log(60, 3, seed=4)
    gaps = np.ones((60, 3), bool)
    gaps[9:, 1] = False
    for few in (log.select(["m0"]), log.take(slice(9)), make_log(60, 3, seed=4, answered=gaps)):
        assert estimate_blending(few, fit_calibrated(few).calibrators) == Blending()
    assert Blending().label == 0.25


def test_weights_are_of_queries_drawn_from_the_whole_log(monkeypatch):
    monkeypatch.setattr(cross_validation, "ENOUGH_QUERIES", 100)
    monkeypatch.setattr(search, "ENOUGH_QUERIES", 100)
    log = make_log(200, 3, seed=4)
    first, drawn = (log.take(rows) for rows in (np.arange(100), draw_enough(np.arange(200))))
    found = estimate_blending(log, fit_calibrated(log).calibrators)
    assert (
        found
        == estimate_blending(drawn, fit_calibrated(drawn).calibrators)
        != estimate_blending(first, fit_calibrated(first).calibrators)
    )


def blend_by_definition(log, folds):
    """The weights by SciPy: what four fifths say of each pair at each cut against what the last one counts."""
    logprob, correct, present = (np.asarray(column) for column in (log.logprob, log.correct, log.answered))
    right, both, k = correct.astype(float), present.all(1), present.shape[1]
    predicted, counted = [], []  # rows of (constant, by a, by b), and figures
    for fold in range(5):
        train = present & (folds != fold)[:, None]
        confidence = [logistic(logprob[:, j], correct[:, j], train[:, j]) for j in range(k)]
        for i, j in itertools.combinations(range(k), 2):
            here, out = train[:, i] & train[:, j], present[:, i] & present[:, j] & (folds == fold)
            cross = logistic(logprob[:, i], correct[:, j], here)
            mean = [(confidence[j][here] - confidence[i][here]).mean(), (cross[here] - confidence[i][here]).mean()]
            level = (right[here, j] - right[here, i]).mean()
            levels = np.quantile(logprob[here, i], np.linspace(0.04, 0.96, 16), method="lower")
            for cut in sorted({*levels.tolist()}):
                low = here & (logprob[:, i] <= cut)
                gain = right[low, j] - right[low, i]
                own = confidence[j][low] - confidence[i][low] - mean[0] + level - gain
                other = cross[low] - confidence[i][low] - mean[1] + level - gain
                predicted.append([gain.sum() / here.sum(), own.sum() / here.sum(), other.sum() / here.sum()])
                passed = out & (logprob[:, i] <= cut)
                counted.append((right[passed, j] - right[passed, i]).sum() / out.sum())
    predicted, counted = np.array(predicted), np.array(counted)
    prior = 300 / both.sum() * (predicted[:, 1:] ** 2).sum() / 2

    def misfit(weights):
        miss = predicted[:, 0] + predicted[:, 1:] @ weights - counted
        return 1e3 * ((miss**2).sum() + prior * ((weights - 0.375) ** 2).sum())

    inside = {"type": "ineq", "fun": lambda weights: 1 - weights.sum()}
    return minimize(misfit, [0.3, 0.3], bounds=[(0, 1)] * 2, constraints=[inside], method="SLSQP", tol=1e-12).x


@pytest.mark.parametrize(("seed", "missing"), [(0, 0.0), (1, 0.15), (2, 0.0)])
def test_weights_are_those_of_the_definition(seed, missing):
    log = make_log(150, 3, seed=seed, missing=missing)
    blend = estimate_blending(log, fit_calibrated(log).calibrators)
    log = log.take(np.asarray(log.answered).any(1))  # what nobody answered plays no part
    folds = deal_folds(log.queries, np.asarray(log.answered).all(1))
    np.testing.assert_allclose([blend.calibrated, blend.conditional], blend_by_definition(log, folds), atol=2e-4)


def test_weights_have_the_least_squares_of_a_grid():
    rng = np.random.default_rng(3)
    grid = np.array([(a, b) for a in np.linspace(0, 1, 101) for b in np.linspace(0, 1, 101) if a + b <= 1 + 1e-12])
    for number in range(200):
        rows = rng.normal(size=(1 + number % 3, 2)) * 10.0 ** rng.integers(-3, 3)
        square, product = rows.T @ rows, rng.normal(size=2) * (number % 7 > 0) * 10.0 ** rng.integers(-3, 3)
        found = search._least_squares(square, product)
        misfits = [(x * (x @ square)).sum(-1) - 2 * x @ product for x in (found, grid)]
        assert (found >= 0).all()
        assert found.sum() <= 1 + 1e-12
        assert misfits[0] <= misfits[1].min() + 1e-12 * np.abs(misfits[1]).max()
