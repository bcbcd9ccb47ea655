"""A policy beside today's on a log: against figures counted by hand."""

import dataclasses

import numpy as np
import pytest
from helpers.judged_logs import judged_log

import rcjax
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy import Reference
from rcjax.policy.bills import Bill
from rcjax.policy.comparison import IN_SERVICE
from rcjax.solving.frontier.points import position_weights
from rcjax.tuning.replaying.comparing import (
    best_single_for,
    compare_policy,
    default_today,
    paired_error,
    single_model_errors,
)

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def logs(float64):
    return rcjax.sample_log(500, seed=4).select(MODELS).split(0.4, seed=0)


@pytest.fixture(scope="module")
def policy(logs):
    return rcjax.tune(logs[0], budget=9e-5, intervals=False).policy


def test_differences_are_counted_query_by_query(logs, policy):
    fresh = logs[1]
    found = compare_policy(policy, fresh, MODELS[2])
    wrong, spent = by_hand(policy, fresh)
    theirs = 1 - np.asarray(fresh.correct, float)[:, 2]
    today = found.today
    assert (found.n_queries, found.fresh, today.name) == (fresh.n_queries, True, MODELS[2])
    assert found.error == pytest.approx(wrong.mean())
    assert found.cost == pytest.approx(spent.mean())
    assert today.cost == pytest.approx(np.asarray(fresh.query_cost)[:, 2].mean())
    assert today.error_difference == pytest.approx((wrong - theirs).mean())
    assert today.se == pytest.approx((wrong - theirs).std() / np.sqrt(len(wrong)))
    affordable = np.flatnonzero(np.asarray(fresh.query_cost).mean(0) <= spent.mean())
    assert found.single.name == MODELS[affordable[np.asarray(fresh.correct).mean(0)[affordable].argmax()]]


def by_hand(policy, log):
    """((n,) how likely each query is answered wrongly, (n,) its money): each rung by `step`, and the bill followed."""
    rungs = np.array([of_rung(rung, log) for rung in policy.rungs])  # (R, 2, n)
    bill, rows = Bill.open(policy.budget), []
    for query in range(log.n_queries):
        shares = position_weights(np.array([bill.position(policy.rung_costs, 0.0)]), len(rungs))[0]
        rows.append(shares @ rungs[:, :, query])
        bill = bill.after_query(rows[-1][1], shares @ np.array(policy.rung_costs), 0.0)
    return np.array(rows).T


def of_rung(rung, log):
    """The same of one rung."""
    wrong, spent = np.zeros(log.n_queries), np.zeros(log.n_queries)
    logprob, correct, money = (np.asarray(column) for column in (log.logprob, log.correct, log.query_cost))
    for row in range(log.n_queries):
        model = rung.first_model
        while True:
            column = log.models.index(model)
            spent[row] += money[row, column]
            decision = rung.step(model, logprob=float(logprob[row, column]))
            if isinstance(decision, rcjax.policy.Answer):
                wrong[row] = 1 - correct[row, column]
                break
            model = decision.next_model
    return wrong, spent


def test_figures_of_the_tuning_are_those_of_the_screens(logs, policy):
    """The difference is that of the two errors that stand beside each other."""
    train = logs[0]
    found = compare_policy(policy, train, MODELS[2], money=9e-5, tuned=True)
    assert (found.error, found.cost) == (policy.expected["error"], policy.expected["cost"])
    assert found.today.error == pytest.approx(1 - np.asarray(train.correct)[:, 2].mean())
    assert found.today.error_difference == pytest.approx(found.error - found.today.error)


def test_a_policy_beside_itself_differs_in_nothing(logs, policy):
    found = compare_policy(policy, logs[1], policy)
    assert (found.today.name, found.today.error_difference, found.today.se) == (IN_SERVICE, 0.0, 0.0)
    assert found.is_todays_policy
    alone = rcjax.tune(logs[0], match=0.0, today=MODELS[0], intervals=False)
    assert alone.comparison.is_todays_policy


def test_the_best_single_model_costs_no_more_than_the_money(logs):
    log = logs[0]
    costs, right = np.asarray(log.cost), np.asarray(log.correct).mean(0)
    for money in (*costs, 0.0, 1.0):
        best = max((right[j], MODELS[j]) for j in range(3) if costs[j] <= max(money, costs.min()) * (1 + 1e-9))[1]
        assert best_single_for(log, float(money)) == best


def test_a_partly_labelled_log_gives_a_model_one_error_beside_any_other():
    log = judged_log(600, 80, by_answer=True)
    errors = 1 - np.asarray(corrected_log(log).correct, float).mean(0)
    policy = rcjax.tune(log, error_cost=1e-9, intervals=False).policy  # the cheapest model alone
    assert policy.models == log.models[:1]
    assert float(rcjax.replay(policy, log).error) == pytest.approx(errors[0])
    found = compare_policy(policy, log, log.models[2])
    assert (found.error, found.today.error) == pytest.approx((errors[0], errors[2]))


def with_accuracy(log, *wrong):
    """The log, whose models err on their first so many queries."""
    correct = np.arange(log.n_queries)[:, None] >= np.array(wrong)
    return dataclasses.replace(log, correct=np.asarray(correct))


@pytest.mark.parametrize(
    ("wrong", "today"), [((60, 20, 19), 1), ((60, 30, 19), 2), ((19, 20, 19), 0), ((60, 20, 30), 1)]
)
def test_todays_is_the_best_or_the_cheapest_within_chance_of_it(logs, wrong, today):
    assert default_today(with_accuracy(logs[0], *wrong)) == MODELS[today]


def test_todays_has_the_fewest_errors_of_models_of_one_price(logs):
    log = with_accuracy(logs[0], 60, 20, 19)
    costs = np.full_like(log.query_cost, 1e-4) * (1 + 1e-12 * np.arange(3))  # equal but for rounding
    assert default_today(dataclasses.replace(log, query_cost=costs, cost=costs.mean(0))) == MODELS[2]


def test_todays_has_the_fewest_errors_if_few_queries_are_complete(logs):
    """The paired error of one query is 1, by which a far worse model was as good."""
    log = with_accuracy(logs[0], 60, 20, 19)
    answered = np.asarray(log.answered).copy()
    answered[1:, 0] = np.arange(len(answered) - 1) % 2 == 0
    answered[1:, 1:] = ~answered[1:, :1]
    few = dataclasses.replace(log, answered=answered)
    assert default_today(few) == MODELS[int(np.argmin(single_model_errors(few)))] != MODELS[0]


def test_todays_is_the_reference_of_a_log_that_has_its_answers(logs):
    log = dataclasses.replace(with_accuracy(logs[0], 19, 20, 19), reference=Reference(MODELS[2], counts="differences"))
    assert default_today(log) == MODELS[2]
    assert default_today(log.select(MODELS[:2])) == MODELS[0]


def test_the_standard_error_of_no_difference_is_that_of_one_query():
    assert paired_error(np.zeros((2, 50))).tolist() == [0.02, 0.02]
    values = np.array([1.0, 0, 0, -1, 1, 1])
    assert paired_error(values) == pytest.approx(values.std() / np.sqrt(6))


def test_a_model_or_answers_that_the_log_lacks_are_named(logs, policy):
    with pytest.raises(rcjax.LogError, match="no answers of gpt; its models are llama3"):
        compare_policy(policy, logs[1], "gpt")
    with pytest.raises(rcjax.LogError, match="today's gpt is not a model of the log: its models are llama3"):
        rcjax.tune(logs[0], budget=1e-4, today="gpt")
