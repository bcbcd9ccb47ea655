"""Whole services that follow a bill: with a budget per query, and with money for a period."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_samples import make_call
from helpers.gateway_service import SURE, gateway, make_policy, until

from rcjax.policy import Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.serving.billing import SharedBill
from rcjax.serving.call_log import CallLog

pytestmark = pytest.mark.thorough
COSTS = {"small": 10.4e-6, "middle": 51.5e-6, "large": 315e-6}  # of 100 tokens sent and one received
BUDGET = 120e-6


def ladder(dearer=1.0, **more):
    """A ladder of single models, tuned when the models cost a fraction of today's prices."""
    parts = make_policy().calibrations, (Rule(1.0, "answer"),)
    rungs = tuple(
        Policy((name,), {name: parts[0][name]}, {name: parts[1]}, {name: cost}, expected={"error": 0.1, "cost": cost})
        for name, cost in ((name, cost / dearer) for name, cost in COSTS.items())
    )
    return Ladder(rungs, 1.5, BUDGET, **more)


def behave(request, headers):
    return Response(sure("B", SURE))


def ask(service, queries):
    """Return the (cost, position) of each query, with 16 queries at once."""

    def one(query):
        body = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}
        headers = service.post(body, x_rcjax_query=str(query)).headers
        return float(headers["x-rcjax-cost"]), float(headers["x-rcjax-position"])

    with ThreadPoolExecutor(16) as pool:
        return np.array([*pool.map(one, queries)])


def figure(service, name):
    page = service.get("/metrics").body.decode()
    return float(re.search(rf'rcjax_{name}{{policy="policy"}} (\S+)', page)[1])


def test_models_that_are_dearer_than_tuned():
    with gateway(ladder(dearer=1.4), behave) as service:
        first = ask(service, ["first"])
        cost, position = np.concatenate([first, ask(service, range(1499))]).T
        assert figure(service, "bill_balance") == pytest.approx(1500 * BUDGET - cost.sum())
    # Six standard deviations of 600 simulated services, whose lots are drawn anew; which answer ends first is chance.
    assert cost.mean() / BUDGET == pytest.approx(1.0, abs=0.055)
    assert position[0] == pytest.approx(1.44, abs=0.01)
    assert position[-200:].mean() == pytest.approx(1.255, abs=0.09)
    assert (np.cumsum(cost - BUDGET) / BUDGET).max() < 200  # overspent on the way, in queries' budgets


def test_money_for_a_period_is_shared_by_the_file_of_totals():
    """Workers and restarts have their tests in tests/serving/test_billing.py."""
    money = 1000 * BUDGET
    policy = ladder(period=Period(money, "month"))
    with gateway(policy, behave) as service:
        cost, _ = ask(service, range(100)).T
        assert figure(service, "period_left") == pytest.approx(money - cost.sum())
        assert 0 < figure(service, "ladder_position") <= 2  # by how much of the month is over
        log = CallLog(service.folder / "calls.jsonl")
        other = SharedBill(policy, "policy", log)  # of another process
        other.pay([make_call("small", cost=float(cost.sum()), charge=replace(other.charge, step=1))])
        log.close()
        # A replica that is asked nothing knows what the others spend.
        until(lambda: figure(service, "period_left") <= money - 1.99 * cost.sum())
    with gateway(policy, behave, follows=False) as service:
        assert ask(service, ["fixed"])[0, 1] == 1.5
    needs = pytest.raises(ValueError, match=r"its budget is for each month.*give --log")
    with needs, gateway(policy, behave, log=None):
        pass
