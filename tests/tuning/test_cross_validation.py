"""Cross-validation of single models, pairs and policies that compare answers: what earns its place."""

import numpy as np
import pytest
from selection_references import make_log

import rcjax
from rcjax.tuning.comparison import AtBudgets, Comparison, Gain, Gains
from rcjax.tuning.contest import cross_validate
from rcjax.tuning.pairs import AS_USUAL

pytestmark = pytest.mark.usefixtures("float64")

N, FOLDS = 120, 5

NOTHING = Gains(*[Gain(0.0, 0.0)] * 3)


# -- what earns its place


def test_the_nearest_price_is_so_on_the_logarithmic_scale():
    seen = Comparison(np.geomspace(1, 1000, 4), NOTHING)  # λ = 1, 10, 100, 1000
    assert seen.nearest([0, 1e-9, 3, 3.3, 10, 317, 1e9]).tolist() == [0, 0, 0, 1, 1, 3, 3]
    assert int(seen.nearest(31.0)) == 1
    assert seen.nearest(np.ones((2, 3))).shape == (2, 3)


def test_comparing_answers_must_gain_at_the_price_and_over_all():
    gain = Gain(np.array([0.1, -0.1, 0.0, 0.2]), np.zeros(4))
    lam, gains = np.geomspace(1, 1000, 4), Gains(gain, Gain(0.05, 0.01), Gain(0.05, 0.01))
    assert Comparison(lam, NOTHING, gains).agreeing.tolist() == [True, False, False, True]
    for none in (None, gains._replace(overall=Gain(0.0, 0.01))):
        assert Comparison(lam, NOTHING, none).agreeing.tolist() == [False] * 4


def test_the_nearest_budget_is_so_on_the_logarithmic_scale():
    nothing = np.zeros((2, 4))
    at = AtBudgets(np.geomspace(1, 1000, 4), Gain(nothing, nothing))
    assert [at.nearest(budget) for budget in (0.0, 1e-9, 3.0, 3.3, 10.0, 317.0, 1e9)] == [0, 0, 0, 1, 1, 3, 3]
    # Of those that pay for the same models alone, where there are any.
    bills = [0.5, 9.0, 11.0, 300.0]
    pairs = [(9.5, 1), (8.9, 0), (3.3, 0), (10.9, 1), (11.0, 2), (299.0, 2), (300.0, 3), (0.4, 0), (1e9, 3)]
    assert [at.nearest(budget, bills) for budget, _ in pairs] == [place for _, place in pairs]
    assert at.nearest(0.0, [0.0, 9.0]) == 0


# -- cross-validation


@pytest.fixture(scope="module")
def two(float64):
    """A log of two models, and the comparison on it."""
    log = make_log(N, 2, seed=1)
    return log, cross_validate(log, rcjax.fit(log), AS_USUAL, FOLDS, 7)


def test_a_second_comparison_compiles_nothing(two, compilations):
    log = make_log(N, 2, seed=3)
    model = rcjax.fit(log)
    with compilations() as compiled:
        cross_validate(log, model, AS_USUAL, FOLDS, 0)
    assert not compiled


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {"correct": np.array([True, False])},
        {"correct": np.array([True, True])},
        {"correct": np.arange(N)[:, None] < 1},
        {"logprob": np.array([-0.5, -0.5])},
        {"logprob": np.where(np.arange(N)[:, None] % 2, -np.inf, 0.0)},
        {"query_cost": np.array([0.0, 0.0])},
        {"query_cost": np.array([0.0, 2.0])},
    ],
    ids=["one is always right", "both are", "right once", "one confidence", "certain", "free", "the first is free"],
)
def test_a_log_that_teaches_little_is_compared_on_all_the_same(two, changes):
    log = make_log(N, 2, seed=4, **changes)
    seen = cross_validate(log, rcjax.fit(log), AS_USUAL, FOLDS, 0)
    assert np.isfinite(seen.lam).all()
    assert all(np.isfinite(figure).all() for gain in seen.pairs for figure in gain)
    at = seen.at_budgets
    for name in ("budgets", "saved"):
        assert np.isfinite(getattr(at, name)).all(), name
    assert (at.saved.mean[0] == 0).all()
    assert np.isfinite(seen.luck).all()


@pytest.mark.thorough
def test_one_model_is_compared_with_nothing(float64):
    log = make_log(N, 1, seed=5)
    seen = cross_validate(log, rcjax.fit(log), AS_USUAL, FOLDS, 0)
    assert all((figure == 0).all() for gain in seen.pairs for figure in gain)
    np.testing.assert_allclose(np.concatenate(seen.luck), 0, atol=1e-12)  # nothing was chosen
    assert seen.at_budgets.saved.mean.shape == (1, len(seen.at_budgets.budgets))
