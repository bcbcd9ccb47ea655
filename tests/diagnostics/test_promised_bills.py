"""What is promised as a bill is held against the bill, by hand; costs at mean costs against those."""

import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.diagnostics.promise import compare_frontier
from rcjax.policy import Defer


def long_when_hard(n=120):
    """A log of two models whose answers cost more where the small one is unsure."""
    log = rcjax.sample_log(n, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    logprob, right = np.asarray(log.logprob), np.asarray(log.correct)
    length = 1 + 2 * (logprob[:, 0] < np.median(logprob[:, 0]))
    rows = [
        {"query": i, "model": name, "logprob": logprob[i, j], "correct": int(right[i, j]), "cost": price * length[i]}
        for i in range(n)
        for j, (name, price) in enumerate((("small", 1e-5), ("large", 1e-4)))
    ]
    return rcjax.read_log(pl.DataFrame(rows))


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
def test_a_bill_is_held_against_the_bill():
    log = long_when_hard()
    logprob, cost = np.asarray(log.logprob), np.asarray(log.query_cost)
    selected = rcjax.tuning.select_frontier(log, lam=[500.0, 3000.0]).frontier
    solved = rcjax.solve_frontier(rcjax.fit(log), lam=[500.0, 3000.0])
    for frontier, charge in ((selected, cost), (solved, np.broadcast_to(cost.mean(0), cost.shape))):
        seen = compare_frontier([(frontier, log)], None)
        for index in range(2):
            policy = frontier.point(index)
            first = log.models.index(policy.first)
            asked = [isinstance(policy.step(policy.first, logprob=row), Defer) for row in logprob[:, first]]
            spent = charge[:, first] + np.array(asked) * charge[:, 1] * (first == 0)
            assert float(seen["cost"][index]) == pytest.approx(spent.mean(), rel=1e-9)
