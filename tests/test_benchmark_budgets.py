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


def tuned(logs, target, value, **how):
    """(error, bill) on the labels and on test of what a user gets, NaN for none."""
    try:
        policy = rcjax.tune(logs[0], **{target: float(value)}, intervals=False, **how).policy
    except rcjax.InfeasibleError:
        return np.full(4, np.nan)
    replays = [rcjax.replay(policy, log) for log in logs]
    return np.array([float(figure) for seen in replays for figure in (seen.error, seen.spent)])


@pytest.mark.thorough
def test_figures_are_those_of_policies_tuned_one_by_one_and_counted(logs, row, best, targets):
    ours = {target: np.array([tuned(logs, target, value) for value in targets[target]]) for target in targets}
    plain = {target: np.array([best(target, value) for value in targets[target]]) for target in targets}
    error, bill = (np.asarray(x, float).mean(0) for x in (1 - np.asarray(logs[1].correct, float), logs[1].query_cost))
    assert not np.isnan(ours["budget"]).any()
    met = ~np.isnan(ours["max_error"][:, 0])
    price = targets["error_cost"]
    loss = [(way[:, 2] + way[:, 3] / price).mean() for way in (ours["error_cost"], plain["error_cost"])]
    wanted = {
        "error": 100 * (ours["budget"][:, 2].mean() / plain["budget"][:, 2].mean() - 1),
        "worst": 100 * (ours["budget"][:, 2] - plain["budget"][:, 2]).max(),
        "used": 100 * (ours["budget"][:, 3] / targets["budget"]).mean(),
        "overspent": 100 * (ours["budget"][:, 3] > 1.03 * targets["budget"]).mean(),
        "bill": 100 * (ours["max_error"][met, 3].mean() / plain["max_error"][met, 3].mean() - 1),
        "missed": 100 * (ours["max_error"][met, 2] > targets["max_error"][met] + 0.01).mean(),
        "loss": 100 * (loss[0] / loss[1] - 1),
        "beaten": 100 * np.mean([((error < e - 1e-9) & (bill < b - 1e-12)).any() for _, _, e, b in ours["error_cost"]]),
        "unmet": (~met).sum(),
    }
    assert {figure: row[figure]["default"] for figure in wanted} == pytest.approx(wanted, abs=1e-6)
    assert row["used"]["plain pair"] == pytest.approx(100 * (plain["budget"][:, 3] / targets["budget"]).mean())
    assert row["error"]["plain pair"] == row["bill"]["plain pair"] == row["loss"]["plain pair"] == 0
    by_model = [tuned(logs, "budget", value, cascade="all")[3] for value in targets["budget"]]
    assert row["used"]["--cascade all"] == pytest.approx(100 * (by_model / targets["budget"]).mean())
