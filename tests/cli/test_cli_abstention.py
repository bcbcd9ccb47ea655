"""The command line where models may refuse to answer."""

import dataclasses
import json

import pytest
from command_line import succeed, write_folder

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("logs"))


@pytest.mark.thorough
def test_by_the_model(folder, tmp_path):
    out = tmp_path / "policy.json"
    asked = ["tune", folder / "train.csv", "--task", "choice", "--cascade", "all", "--no-bands", "--json"]
    options = ["--error-cost", "0.001", "--abstain-price", "0.3", "--out", out]
    document = json.loads(succeed(*asked, *options))
    expected = document["policy"]["expected"]
    assert expected["abstain_price"] == pytest.approx(0.3)
    assert expected["abstention"] > 0
    for point in document["frontier"]:
        assert list(point["rules"]) == point["models"]
        assert 0 <= point["abstention"] <= 1
    log = rcjax.read_log(folder / "train.csv", task="choice")
    tuned = rcjax.tune(log, error_cost=0.001, abstain_price=0.3, cascade="all", intervals=False)
    # A policy is chosen by bills; the frontier of a search by the model has mean costs.
    seen = rcjax.replay(tuned.frontier, log)
    bills = dataclasses.replace(tuned.frontier, cost=tuned.frontier.cost * seen.spent / seen.cost)
    assert bills.policy(error_cost=0.001).rules == rcjax.load_policy(out).rules

    seen = json.loads(succeed("evaluate", out, folder / "test.csv", "--json"))
    assert seen["predicted"]["abstention"] == expected["abstention"]
    assert abs(seen["abstention"] - expected["abstention"]) < 0.1
    assert sum(seen["share"]) + seen["abstention"] == pytest.approx(1)
    assert seen["error_answered"] == pytest.approx(seen["error"] / (1 - seen["abstention"]))
