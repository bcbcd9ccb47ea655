"""The contest: what each way to choose policies loses on queries left out, against loops over folds in plain numpy."""

import dataclasses
import itertools

import agreement_logs
import numpy as np
import pytest
from contest_references import best_for, by_folds, columns, dealt, mix_for, walk_by_hand
from selection_references import make_log

import rcjax
from rcjax.frontier.points import lam_range, refusal_at
from rcjax.model.fitting import fit_near
from rcjax.tuning import contest as cross_validation
from rcjax.tuning.comparison import Luck
from rcjax.tuning.contest import BUDGETS, ERRORS, PRICES, Losses, Targets, contest, cross_validate, gains_of, targets_of
from rcjax.tuning.judging import judge_log, judging_of
from rcjax.tuning.pairs import Blend, Judging
from rcjax.tuning.resampling import deal_folds

pytestmark = pytest.mark.usefixtures("float64")

N, FOLDS = 120, 5


def losses_of(log, judging, folds, seed, monkeypatch):
    """(the losses, the comparison that is made of them) of all arms of `cross_validate`."""
    kept = []

    def keep(*arguments):
        kept.append(contest(*arguments))
        return kept[-1]

    monkeypatch.setattr(cross_validation, "contest", keep)
    model = rcjax.fit(log)
    comparison = cross_validate(log, model, judging, folds, seed)
    return kept[0], comparison, model


# -- targets


def test_targets_run_from_the_cheapest_bill_beyond_the_dearest():
    log = make_log(N, 3, seed=1)
    targets = targets_of(log)
    bills = np.asarray(log.query_cost).mean(0)
    np.testing.assert_allclose(targets.lam, lam_range(bills, PRICES), rtol=1e-12)
    assert targets.budgets[[0, -1]] == pytest.approx([bills.min(), 1.2 * bills.max()])
    np.testing.assert_allclose(
        np.diff(np.log(targets.budgets)), np.log(1.2 * bills.max() / bills.min()) / (BUDGETS - 1)
    )
    wrong = 1 - np.asarray(log.correct).mean(0)
    np.testing.assert_allclose(targets.errors, np.linspace(wrong.min(), wrong.max(), ERRORS), atol=1e-12)
    free = targets_of(make_log(N, 2, seed=1, query_cost=np.array([0.0, 2.0])))
    assert (free.budgets > 0).all()
    assert np.isfinite(targets_of(make_log(N, 2, seed=1, query_cost=np.zeros(2))).budgets).all()


# -- single models and pairs


@pytest.fixture(scope="module", params=[0.0, 0.2], ids=["whole", "with gaps"])
def two(request, float64):
    """(log, losses, comparison, what a loop over the folds says) of two models."""
    log = make_log(N, 2, seed=1, missing=request.param)
    # Money that has its own say for each query: those that are passed on are dearer.
    money = np.asarray(log.query_cost) * np.where(np.asarray(log.logprob)[:, :1] < -0.5, 1.7, 0.6)
    money = np.where(np.asarray(log.answered), np.nan_to_num(money), 0.0)
    log = dataclasses.replace(log, query_cost=money, cost=money.sum(0) / np.asarray(log.answered).sum(0))
    # Where a confidence is there thrice by chance, no threshold parts it here: that is done below.
    judging = judging_of(log, rcjax.fit(log).calibrators.transform)
    with pytest.MonkeyPatch.context() as patched:
        losses, comparison, _ = losses_of(log, judging, FOLDS, 7, patched)
    return log, losses, comparison, by_folds(log, losses.targets, judging.blend, FOLDS, 7)


def test_losses_are_a_loop_over_the_folds(two):
    log, losses, _, (wrong, money, told) = two
    assert losses.arms == ("models", "pairs")
    assert losses.penalty.shape == (1, 2, PRICES + BUDGETS + ERRORS, log.complete.sum())
    np.testing.assert_allclose(losses.penalty[0], wrong, atol=1e-12)
    np.testing.assert_allclose(losses.charge, money, rtol=1e-9)
    np.testing.assert_allclose(losses.promised, told, atol=1e-7)
    np.testing.assert_array_equal(losses.expected, losses.penalty)
    assert len(np.unique(money[1].mean(-1))) > 12  # pairs at many thresholds
    assert (wrong[0] != wrong[1]).any()


def test_luck_is_how_much_more_is_lost_than_was_told(two):
    _, losses, comparison, (wrong, _, told) = two
    luck = (wrong.mean(-1) - told) * (1 - 1 / FOLDS)
    for arm, name in enumerate(losses.arms):
        assert losses.luck(name, slice(3, 5)) == pytest.approx(luck[arm, 3:5].mean(), abs=1e-7)
    ends = np.cumsum([0, PRICES, BUDGETS])
    for kind, own, low, high in zip(Luck._fields, comparison.luck, ends[:-1], ends[1:], strict=True):
        np.testing.assert_allclose(own, luck[:, low:high].mean(1), atol=1e-7, err_msg=kind)


def test_what_a_budget_saves_is_of_errors_alone(two):
    log, losses, comparison, (wrong, money, _) = two
    budgets = slice(PRICES, PRICES + BUDGETS)
    less = (wrong[0] - wrong)[:, budgets]
    saved, spread = less.mean(-1), less.std(-1, ddof=1) / np.sqrt(log.complete.sum())
    at = comparison.at_budgets
    for mine, theirs in zip(losses.saved(losses.arms, "models"), (saved, spread), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
    error, cost = (figure[:, budgets] for figure in losses.means(losses.arms))
    expected = ((error, wrong[:, budgets].mean(-1)), (cost, money[:, budgets].mean(-1)))
    for mine, theirs in ((at.saved.mean, saved), (at.saved.se, spread), *expected):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(at.budgets, losses.targets.budgets)
    assert (saved[0] == 0).all()
    assert saved[1].max() > 0


def test_gains_are_of_loss_at_prices(two):
    log, losses, comparison, (wrong, money, _) = two
    lam, n = losses.targets.lam, int(log.complete.sum())
    loss = (wrong + np.append(lam, np.zeros(BUDGETS + ERRORS))[:, None] * money)[:, :PRICES]
    gain, rival = loss[0] - loss[1], loss[0].mean(-1)
    share = (gain / rival[:, None]).mean(0)
    np.testing.assert_allclose(comparison.lam, lam)
    expected = (gain.mean(-1), gain.std(-1, ddof=1) / np.sqrt(n)), (share.mean(), share.std(ddof=1) / np.sqrt(n))
    for mine, theirs in zip(comparison.pairs, (*expected, expected[1]), strict=True):
        np.testing.assert_allclose(mine.mean, theirs[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mine.se, theirs[1], rtol=1e-9, atol=1e-12)


# -- figures of made-up losses


def test_two_forms_of_outcomes_tell_figures_and_their_standard_errors():
    """Figures are of the first form, which is expected; standard errors of the last, which the labels correct."""
    rng = np.random.default_rng(0)
    targets = Targets(np.array([0.5, 2.0]), np.array([1.0, 3.0, 9.0]), np.array([0.1, 0.2]))
    penalty, charge = rng.random((2, 3, 7, 40)), rng.random((3, 7, 40))
    expected, told = rng.random((2, 3, 7, 40)), rng.random((3, 7))
    losses = Losses(("a", "b", "c"), targets, penalty, charge, expected, told, folds=4)
    saved, spread = losses.saved(["c", "b"], "a")
    for row, arm in enumerate((2, 1)):
        fewer = penalty[:, 0, 2:5] - penalty[:, arm, 2:5]
        np.testing.assert_allclose(saved[row], fewer[0].mean(-1))
        np.testing.assert_allclose(spread[row], fewer[1].std(-1, ddof=1) / np.sqrt(40))
    for kind, low, high in (("prices", 0, 2), ("within", 2, 5), ("limits", 5, 7)):
        luck = 0.75 * (penalty[1, 1, low:high].mean() - told[1, low:high].mean())
        assert losses.luck("b", getattr(targets, kind)) == pytest.approx(luck), kind
    for mean, figure in zip(losses.means(["b"]), (penalty[1, 1], charge[1]), strict=True):
        np.testing.assert_allclose(mean[0], figure.mean(-1))
    money = targets.lam[:, None] * charge[:, :2]
    for soft in (False, True):
        own = losses.gains(["b"], "c", expected=soft)
        figure = (expected if soft else penalty)[:, :, :2] + money
        counted = penalty[:, :, :2] + money
        gain, rival = figure[:, 2] - figure[:, 1], counted[0, 2].mean(-1)[:, None]
        shares = [(gain[form] / rival).mean(0) for form in range(2)]
        plain = [((counted[form, 2] - counted[form, 1]) / rival).mean(0) for form in range(2)]
        assert own.at_prices.mean[0] == pytest.approx(gain[0].mean(-1))
        assert own.at_prices.se[0] == pytest.approx(gain[1].std(-1, ddof=1) / np.sqrt(40))
        for pair, (mean, of) in ((own.overall, shares), (own.counted, plain)):
            assert pair[0][0] == pytest.approx(mean.mean())
            assert pair[1][0] == pytest.approx(of.std(ddof=1) / np.sqrt(40))
    nothing = gains_of(np.zeros((1, 1, 2, 5)), np.zeros((1, 2, 5)))  # a rival that loses nothing at no price
    assert all((figure == 0).all() for gain in nothing for figure in gain)


# -- all arms, of whatever there is to choose from


def by_hand(log, model, judging, targets, folds, seed):
    """{arm: (penalty (T, m), charge (T, m), told (T,))} by loops: fit without the fold, judge, choose, walk."""
    logprob, right, answered, charge = columns(log)
    complete, k = answered.all(1), right.shape[1]
    fold = dealt(complete, folds, seed)
    price = None if judging.refusal is None else 1 - float(judging.refusal)
    arms = {}
    for number in range(folds):
        out = fold == number
        train = answered & ~out[:, None]
        rows = logprob, right, train
        fitted = fit_near(model, *rows, log.cost)
        trial = judge_log(fitted.calibrators, rows, charge, judging)
        wanted = [{"lam": lam} for lam in targets.lam] + [{"budget": budget} for budget in targets.budgets]
        wanted += [{"max_error": error} for error in targets.errors]
        use = np.isfinite(trial.error)
        if price is None:
            beaten = (trial.counted[:k] < trial.counted[:, None] - 1e-9) & (trial.cost[:k] < trial.cost[:, None])
            use &= ~beaten.any(1) | (trial.first == trial.second)
        compared = judge_log(fitted.calibrators, rows, charge, judging, log.answer)
        both = [(trial, np.flatnonzero(use)), (compared, np.flatnonzero(np.isfinite(compared.error)))]
        among = {"models": both[:1], "pairs": both[:1], "answers": both}
        confidence = np.asarray(fitted.calibrate(logprob))
        part = out & complete
        codes = np.asarray(log.answer)[part]
        for name, tables in among.items():
            error, cost = (np.concatenate([getattr(own, of)[rows] for own, rows in tables]) for of in ("error", "cost"))
            error = np.where(np.arange(len(error)) < k, error, np.inf) if name == "models" else error
            every = [(own, row) for own, rows in tables for row in rows]
            penalty, money, told = arms.setdefault(name, [np.zeros((len(wanted), len(out))) for _ in range(3)])
            for row, target in enumerate(wanted):
                mixed = [(1.0, best_for(error, cost, **target))] if name == "models" else mix_for(error, cost, **target)
                for share, place in mixed:
                    own, index = every[place]
                    policies = own.take(np.array([index])).policies()
                    walked = walk_by_hand(policies, 0, confidence[part], right[part], charge[part], codes)
                    penalty[row, part] += share * (walked[0] + (price or 0.0) * walked[2])
                    money[row, part] += share * walked[1]
                    told[row] += share * error[place] * part.sum() / complete.sum()
    return {
        name: (penalty[:, complete], money[:, complete], told[:, 0]) for name, (penalty, money, told) in arms.items()
    }


LOGS = {
    "answers, one confidence for many": (lambda: agreement_logs.make_log(90, 0.2, seed=1), None),
    "refusals": (lambda: agreement_logs.make_log(90, 0.2, seed=2), 0.3),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOGS)
def test_every_arm_loses_what_a_loop_by_hand_does(name, monkeypatch):
    make, price = LOGS[name]
    log = make()
    transform = rcjax.fit(log).calibrators.transform
    judging = judging_of(log, transform, refusal_at(price, log.cost.dtype))
    losses, _, model = losses_of(log, judging, 3, 5, monkeypatch)
    arms = by_hand(log, model, judging, losses.targets, 3, 5)
    assert losses.arms == ("models", "pairs", "answers")
    for arm, (penalty, money, told) in arms.items():
        place = losses.arms.index(arm)
        np.testing.assert_allclose(losses.charge[place].mean(-1), money.mean(-1), rtol=1e-6, err_msg=arm)
        np.testing.assert_allclose(losses.penalty[-1, place], penalty, atol=1e-9, err_msg=arm)
        np.testing.assert_allclose(losses.charge[place], money, rtol=1e-9, err_msg=arm)
        np.testing.assert_allclose(losses.promised[place], told, atol=1e-9, err_msg=arm)


def test_labels_left_out_have_no_say_in_the_choice():
    """A log whose labels are drawn by lot: what was chosen among many is lucky, and the contest shows by how much."""
    lucky = []
    for seed in range(4):
        coin = np.random.default_rng(seed).random((N, 2)) < 0.5
        log = make_log(N, 2, seed=seed, correct=coin)
        seen = cross_validate(log, rcjax.fit(log), Judging(Blend(0.0, 0.0)), FOLDS, 0)
        lucky.append(float(seen.luck.budgets[1]))
        assert abs(seen.luck.budgets[0]) < 0.02 + 2 / np.sqrt(N)
    assert min(lucky) > 0.01


def test_the_deal_is_at_random_by_its_seed_alone():
    complete = np.random.default_rng(3).random(77) < 0.6
    for folds, seed in itertools.product((2, 5), (0, 4)):
        np.testing.assert_array_equal(deal_folds(complete, folds, seed), dealt(complete, folds, seed))
