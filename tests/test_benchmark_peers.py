"""What stands beside rcjax in `benchmarks.peers`: each peer does what its paper says, on cases counted by hand."""

import numpy as np
import pytest

from benchmarks.methods import BILL, ERROR, LABELS_BILL, LABELS_ERROR, Columns
from benchmarks.peers import __main__ as peers, abc, bargain, cascade_routing, ucci

QUICK = [name for name in peers.PEERS if name != peers.BAYESIAN]


def made(n: int, models: int, seed: int) -> Columns:
    """Models of rising skill and price, whose confidence is right on average."""
    rng = np.random.default_rng(seed)
    sure = rng.beta(2, 1, (n, models)) ** (1 / np.arange(1, models + 1))
    wrong = (rng.random((n, models)) > sure).astype(float)
    answer = np.where(wrong > 0, rng.integers(1, 4, (n, models)), 0)
    return Columns(np.log(sure), wrong, 3.0 ** np.arange(models) * rng.uniform(0.5, 1.5, (n, models)), answer)


@pytest.fixture(scope="module")
def columns():
    return made(120, 3, 0), made(400, 3, 1)


def test_every_peer_gives_policies_whose_figures_are_errors_and_bills(columns):
    cheapest, dearest = (columns[1].cost.mean(0)[place] for place in (0, -1))
    for name in QUICK:
        points = peers.PEERS[name](*columns)
        assert points.shape[1] == 4, name
        assert ((points[:, [LABELS_ERROR, ERROR]] >= 0) & (points[:, [LABELS_ERROR, ERROR]] <= 1)).all(), name
        assert (points[:, BILL] >= cheapest - 1e-9).all(), name
        assert points[:, ERROR].min() < columns[1].wrong[:, 0].mean(), name
        assert points[:, LABELS_BILL].max() > 0.5 * dearest, name


def test_isotonic_regression_pools_what_violates_the_order():
    # The textbook case of pool adjacent violators: neighbours that rise are averaged until nothing does.
    confidence = np.array([0.1, 0.2, 0.3, 0.4, 0.4, 0.5])
    wrong = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    values, risk = ucci.isotonic(confidence, wrong)
    assert values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert risk.tolist() == [1.0, 0.5, 0.5, 0.5, 0.0]
    shuffled = np.random.default_rng(0).random(50)
    labels = (np.random.default_rng(1).random(50) > np.sort(shuffled)).astype(float)
    fitted = ucci.isotonic(np.sort(shuffled), labels)[1]
    assert (np.diff(fitted) <= 0).all()
    assert fitted.mean() == pytest.approx(labels.mean())


def test_a_majority_answers_where_enough_agree_and_all_of_a_tier_are_billed():
    # Section 3 of the paper, three models: all agree; two of three; none.
    data = Columns(
        np.zeros((3, 4)),
        np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1.0]]),
        np.array([[1.0, 2.0, 3.0, 10.0]] * 3),
        np.array([[5, 5, 5, 5], [1, 2, 2, 2], [1, 2, 3, 4]]),
    )
    tally = abc.votes(data, (0, 1, 2))
    assert tally.share.tolist() == pytest.approx([1, 2 / 3, 1 / 3])
    assert tally.wrong.tolist() == [0, 0, 0]
    assert tally.cost.tolist() == [6, 6, 6]
    for theta, figures in {2 / 3: (1 / 3, 6 + 20 / 3), 1 / 3: (1 / 3, 6 + 10 / 3), 0.0: (0.0, 6.0)}.items():
        assert abc.answered(data, ((0, 1, 2), (3,)), [theta]) == pytest.approx(figures), theta
    assert abc.votes(data, (0, 1)).share.tolist() == [1, 0.5, 0.5]


def test_cascade_routing_asks_one_model_where_money_counts_and_gives_the_best_answer_where_none_does(columns):
    bill = columns[0].cost.mean(0)
    table, _ = cascade_routing.values_by_asked(*columns)
    assert table[(0,)].expected.shape == (120, 3)
    dear = cascade_routing.walk(columns[0], table, bill, 1e6)
    assert dear == pytest.approx((columns[0].wrong[:, 0].mean(), columns[0].cost[:, 0].mean()))
    error, cost = cascade_routing.walk(columns[0], table, bill, 0.0)
    assert cost > bill[2]
    assert error < columns[0].wrong.mean(0).min()
    assert len(cascade_routing.cascade_routing(*(made(60, 7, seed) for seed in (0, 1)))) == 0


@pytest.mark.thorough
def test_bargain_keeps_its_promise_and_stops_at_the_first_failure():
    accuracy, broken, used = np.array([0.9]), 0, 0
    rng = np.random.default_rng(0)
    for _ in range(200):  # answers of which 1 − c differ at confidence c
        confidence = rng.random(150)
        differs = (rng.random(150) > confidence).astype(float)
        (threshold,) = bargain.thresholds_for(confidence, differs, accuracy, 0.1)
        low = min(max(threshold, 0.0), 1.0)
        broken, used = broken + ((1 - low) ** 2 / 2 > 0.1), used + np.isfinite(threshold)
    assert broken <= 200 * 0.1
    assert used > 150
    never = bargain.thresholds_for(np.linspace(0, 1, 60), np.ones(60), np.array([0.5, 0.999]))
    assert never.tolist() == [bargain.thresholds_for(np.linspace(0, 1, 60), np.ones(60), np.array([0.5]))[0], np.inf]
