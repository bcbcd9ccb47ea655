"""Arms of the contest beside those of the default: a policy in service."""

import numpy as np
import pytest
from selection_references import make_log

import rcjax
from rcjax.diagnostics.promise import held_out
from rcjax.frontier.points import Outcomes
from rcjax.tuning.candidates import Targets
from rcjax.tuning.comparison import Gain
from rcjax.tuning.contest import Contest, Entry, contest

pytestmark = pytest.mark.usefixtures("float64")
FOLDS = 5


def test_entries_say_what_becomes_of_queries_and_gains_are_shares_of_the_rival():
    log, rng = make_log(60, 2, missing=0.1), np.random.default_rng(0)
    targets, price = Targets(np.array([0.5, 2.0])), 0.3
    served = Outcomes(*rng.random((3, 2, 60)))
    tuned = [Outcomes(*rng.random((3, 2, 60))) for _ in range(FOLDS)]
    fold, rows = np.arange(60) % FOLDS, log.complete

    def enter(number):
        return [Entry(lambda *_: served), Entry(lambda *_: tuned[number], promised=np.array([number, 1.0]))]

    losses = contest(log, Contest(("served", "tuned"), targets, enter, log.cost, price), fold)
    mixed = Outcomes(*(np.stack([figure[f, :, i] for i, f in enumerate(fold)], 1) for figure in map(np.stack, zip(*tuned, strict=True))))  # fmt: skip # noqa: E501
    for arm, outcomes in enumerate((served, mixed)):
        np.testing.assert_allclose(losses.penalty[0, arm], (outcomes.wrong + price * outcomes.refused)[:, rows])
        np.testing.assert_allclose(losses.charge[arm], outcomes.cost[:, rows])
    shares = np.bincount(fold[rows]) / rows.sum()
    np.testing.assert_allclose(losses.promised[1], [shares @ np.arange(FOLDS), 1.0])
    assert np.isnan(losses.promised[0]).all()
    loss = [(losses.penalty[0, arm] + targets.lam[:, None] * losses.charge[arm]) for arm in range(2)]
    gains = losses.gains(["tuned"], "served").of_arm(0)
    share = ((loss[0] - loss[1]) / loss[0].mean(-1)[:, None]).mean(0)
    np.testing.assert_allclose(gains.overall, (share.mean(), share.std(ddof=1) / np.sqrt(rows.sum())))
    np.testing.assert_allclose(gains.at_prices, Gain.of(np.stack(loss[:1]) - loss[1]))


@pytest.mark.thorough
def test_a_fold_is_held_out_with_what_its_model_was_fitted_to():
    log = rcjax.sample_log(60, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    model = rcjax.fit(log)
    (alone,) = held_out(model, log, folds=False)
    assert alone.rest is None
    for fold in held_out(model, log, folds=True):
        assert fold.rest.n_queries == 60
        np.testing.assert_array_equal(~fold.rest.complete, np.isin(log.queries, fold.log.queries))
