"""A budget is kept where servers bill more than prices say, from the first bill of each model on."""

import json

import pytest
from helpers.chat_server import Response, sure
from helpers.collecting_runs import collect, lines
from helpers.sample_models import Models

pytestmark = pytest.mark.usefixtures("own_settings")
BILL = 0.036  # for $0.00017 by the prices


class Billed(Models):
    """Models that bill so much for a call."""

    def __init__(self, bill=BILL, told=lambda bill: bill):
        super().__init__()
        self.bill, self.told, self.calls = bill, told, 0

    def __call__(self, request, headers):
        self.calls += 1
        usage = {"prompt_tokens": 100, "completion_tokens": 1, "cost": self.told(self.bill)}
        return Response(sure("AB"[self.calls % 2], -0.1) | {"usage": usage})


TOLD = {"a number": lambda bill: bill, "an object": lambda bill: {"total_cost": bill}, "a text": str}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_a_bill_above_the_prices_ends_the_run_where_the_budget_does(place, told):
    """Ten calls were $0.36 of a budget of $0.05, and the run, and the next, ended in an error of rcjax's own."""
    behave = Billed(told=told)
    options = "--budget", 0.05, "--signal", "choice", "--json"
    for _ in range(2):  # the second goes on where the first ended
        result, _ = collect(place, behave, *options, n=10, names=["tiny"])
        document = json.loads(result.stdout)
        assert (behave.calls, document["spent"], document["budget_spent"]) == (1, pytest.approx(BILL), True)
        assert result.exit_code == 0, result.stderr
    assert [row["cost"] for row in lines(place)] == [pytest.approx(BILL)]


def test_the_bill_of_a_probe_raises_the_worst_case(place):
    behave = Billed()
    for _ in range(2):
        result, _ = collect(place, behave, "--budget", 0.01, "--json", n=10, names=["tiny"])
        assert (behave.calls, json.loads(result.stdout)["budget_spent"]) == (1, True)
        assert "unexpected" not in result.stderr


def test_calls_reserve_the_largest_bill_so_far(place):
    behave = Billed()
    result, _ = collect(place, behave, "--budget", 1, "--signal", "choice", "--json", n=40, names=["tiny"])
    assert behave.calls == 27  # 27 × 0.036 = 0.972
    assert json.loads(result.stdout)["spent"] == pytest.approx(0.972)


def test_bills_of_judges_count_too(place):
    """A judge whose bill is above its price grades no more than the budget allows."""
    behave = Billed()
    options = "--budget", 0.2, "--signal", "choice", "--grade", "judge:tiny", "--json"
    result, _ = collect(place, behave, *options, n=10, names=["tiny"])
    assert json.loads(result.stdout)["spent"] <= 0.2
    assert behave.calls == 5
