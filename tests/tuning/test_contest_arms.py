"""Arms of the contest beside those of the default: a policy in service, a segment's own, those within a limit."""

import dataclasses

import numpy as np
import pytest
from selection_references import make_log
from timed_logs import timed_log

import rcjax
from rcjax._core.size_classes import fill_up
from rcjax.diagnostics.prediction import held_out
from rcjax.frontier.outcomes import Outcomes
from rcjax.model.fitting_steps import calibrate_log
from rcjax.policy.limits import SecondsLimit
from rcjax.replaying.walk import outcomes_on_log
from rcjax.tuning.choices import Targets, tune_by_labels
from rcjax.tuning.comparison import Gain
from rcjax.tuning.contest import Contest, Entry, contest
from rcjax.tuning.judging import AS_USUAL
from rcjax.tuning.resampling import deal_folds
from rcjax.tuning.seconds_limit import Admission, admission
from rcjax.tuning.segment_trials import WEIGHTS, pooled_rows, try_segments
from rcjax.tuning.trials import judge_pairs

pytestmark = pytest.mark.usefixtures("float64")
FOLDS = 5


def test_entries_say_what_becomes_of_queries_and_gains_are_shares_of_a_base():
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
    for base, arm in ((None, 0), ("served", 0), ("tuned", 1)):
        gains = losses.gains(["tuned"], "served", base=base).of_arm(0)
        share = ((loss[0] - loss[1]) / loss[arm].mean(-1)[:, None]).mean(0)
        np.testing.assert_allclose(gains.overall, (share.mean(), share.std(ddof=1) / np.sqrt(rows.sum())))
        np.testing.assert_allclose(gains.at_prices, Gain.of(np.stack(loss[:1]) - loss[1]))


def segment_losses(log, model, lam, name):
    """((weights + 1, G, m) error + λ·cost, errors) of a segment's queries left out, by loops; the last of all."""
    segment, fold = np.array(log.segment), deal_folds(log.complete, FOLDS, 0)
    rows = np.flatnonzero(segment == name)
    cost, size = np.asarray(log.take(rows).cost), len(WEIGHTS) + 1
    losses, errors = np.zeros((size, len(lam), len(rows))), np.zeros((size, len(lam), len(rows)))
    columns = [np.asarray(column) for column in (log.logprob, log.correct, log.answered)]
    for out in range(FOLDS):
        train, left = np.flatnonzero(fold != out), fold[rows] == out
        inside = segment[train] == name
        pools = [(pooled_rows(train[inside], train[~inside], weight), cost) for weight in WEIGHTS]
        for arm, (pool, money) in enumerate([*pools, (train, np.asarray(log.cost))]):
            some = fill_up(*(column[pool] for column in columns), size=768)  # one programme
            calibrators, _ = calibrate_log(*some, transform=model.calibrators.transform)
            policies = tune_by_labels(calibrators, (*some, None), money, lam)
            outcomes = outcomes_on_log(calibrators, *(column[rows[left]] for column in columns), cost, policies)
            losses[arm][:, left] = outcomes.wrong + lam[:, None] * outcomes.cost
            errors[arm][:, left] = outcomes.wrong
    return losses, errors


def test_a_segments_own_policies_are_tried_as_a_loop_over_the_folds_says():
    log = rcjax.sample_log(180, seed=3).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    segment = np.random.default_rng(0).choice(["de", "en", "fr"], 180, p=[0.6, 0.3, 0.1])
    log = dataclasses.replace(log, by="language", segment=tuple(segment.tolist()))
    model = rcjax.fit(log)
    trials = try_segments(log, model)
    assert (trials.segments["fr"].weight, trials.segments["fr"].earned) == (None, False)  # fewer than 30 queries
    for name in ("de", "en"):
        trial = trials.segments[name]
        losses, errors = segment_losses(log, model, trials.lam, name)
        share = ((losses[-1] - losses[:-1]) / losses[-1].mean(-1)[:, None]).mean(1)
        best = share.mean(-1).argmax()
        behind = share[best] - share
        even = behind.mean(-1) <= behind.std(-1, ddof=1) / np.sqrt(share.shape[1])
        chosen = np.flatnonzero(even)[-1]
        assert trial.weight == WEIGHTS[chosen]
        expected = share[chosen].mean(), share[chosen].std(ddof=1) / np.sqrt(share.shape[1])
        np.testing.assert_allclose(trial.gain, expected, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(trial.loss, losses[-1].mean(-1), rtol=1e-6)
        np.testing.assert_allclose(trial.error, errors[chosen].mean(-1), rtol=1e-6)


@pytest.mark.parametrize("limit", [pytest.param("p95=2.5", marks=pytest.mark.thorough), 0.9])
def test_the_luck_of_a_limit_is_what_a_loop_over_the_folds_says(limit):
    log, limit = timed_log(60, seed=2), SecondsLimit.of(limit)
    model = rcjax.fit(log)
    admitted = admission(log, model, limit)
    lam = np.asarray(rcjax.solving.lambda_grid.lam_range(np.asarray(log.cost, float), 40))
    whole = judge_pairs(log, model, lam, AS_USUAL)
    binds = admitted.figure(whole.policies, model)[whole.loss(lam).argmin(1)] > admitted.allowed
    fold, more = deal_folds(log.complete, FOLDS, 0), []
    for number in range(FOLDS):
        train, rest = log.take(fold != number), log.take(fold == number)
        fitted = rcjax.fit(train)
        trial = judge_pairs(train, fitted, lam, AS_USUAL)
        inner, outer = (Admission(limit, part, admitted.allowed, 0.0).figure(trial.policies, fitted) for part in (train, rest))  # fmt: skip # noqa: E501
        best = np.where(inner <= admitted.allowed, trial.loss(lam[binds]), np.inf).argmin(1)
        more.append((outer[best] - inner[best]).mean())
    assert binds.any()
    assert admitted.luck == pytest.approx(max(0.0, 0.8 * np.mean(more)), rel=1e-6)


@pytest.mark.thorough
def test_a_fold_is_held_out_with_what_its_model_was_fitted_to():
    log = rcjax.sample_log(60, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    model = rcjax.fit(log)
    (alone,) = held_out(model, log, folds=False)
    assert alone.rest is None
    for fold in held_out(model, log, folds=True):
        assert fold.rest.n_queries == 60
        np.testing.assert_array_equal(~fold.rest.complete, np.isin(log.queries, fold.log.queries))
