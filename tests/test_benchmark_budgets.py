"""What budgets get, as `benchmarks.budgets` measures it: its figures are those of a count by hand."""

import numpy as np
import pytest

import rcjax
from benchmarks import budgets
from benchmarks.methods import plain_pairs

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-70b")
COUNTS = [3, 3, 2]


@pytest.fixture(scope="module")
def logs():
    return tuple(rcjax.sample_log(n, seed=seed).select(MODELS) for n, seed in ((96, 0), (192, 99)))


@pytest.fixture(scope="module")
def row(logs):
    return budgets.measure(*logs, COUNTS)


def plainly(log):
    """(error, bill) of a pair at a threshold, or of one model named twice: each query walked through."""
    logprob, correct, cost = (np.asarray(x, float) for x in (log.logprob, log.correct, log.query_cost))

    def walked(i, j, threshold):
        passed = logprob[:, i] <= threshold
        return 1 - np.where(passed, correct[:, j], correct[:, i]).mean(), (cost[:, i] + passed * cost[:, j]).mean()

    return walked


@pytest.fixture(scope="module")
def best(logs):
    """The plain policy for a target, by trying all: its figures on the labels and on test."""
    walks = [plainly(log) for log in logs]
    names = [(j, j, -np.inf) for j in range(2)]
    names += [(0, 1, threshold) for threshold in np.asarray(logs[0].logprob)[:, 0]]
    figures = [(*walks[0](*name), *walks[1](*name)) for name in names]

    def choose(target, value):
        met = {
            "budget": [(row[0], row[1], row) for row in figures if row[1] <= value * (1 + 1e-9)],
            "max_error": [(row[1], row[0], row) for row in figures if row[0] <= value * (1 + 1e-9)],
            "error_cost": [(row[0] + row[1] / value, row[1], row) for row in figures],
        }[target]
        return np.array(min(met)[2])

    return choose


@pytest.fixture(scope="module")
def targets(logs):
    return budgets.targets_of(plain_pairs(*logs)[:2], COUNTS)


def test_every_pair_is_tried_at_every_confidence():
    log = rcjax.sample_log(96, seed=0)
    points, walk = plain_pairs(log, log), plainly(log)
    assert len(points) == 5 + sum((4 - i) * len(np.unique(np.asarray(log.logprob)[:, i])) for i in range(4))
    for i, j, threshold in ((0, 1, -0.5), (1, 4, -0.1), (2, 3, -np.inf)):
        threshold = max(np.asarray(log.logprob)[:, i][np.asarray(log.logprob)[:, i] <= threshold], default=threshold)
        assert np.isclose(points, [*walk(i, j, threshold)] * 2).all(1).any(), (i, j, threshold)


def test_the_plain_pair_is_the_best_of_all_that_are_tried(logs, best, targets):
    plain = budgets.by_labels(plain_pairs(*logs))
    for target, values in targets.items():
        for value in values:
            assert plain(target, value) == pytest.approx(best(target, value)), (target, value)
    with pytest.raises(rcjax.InfeasibleError):
        plain("budget", 0.99 * targets["budget"][0])
