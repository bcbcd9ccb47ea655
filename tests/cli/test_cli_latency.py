"""The command line where the log tells seconds: figures beside error and cost, a price, a limit."""

import json

import numpy as np
import pytest
from helpers.command_line import succeed
from helpers.timed_logs import timed_table, waited

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")
FIGURES = ("seconds", "seconds_p95")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    timed_table(300, seed=1).write_csv(folder / "train.csv")
    timed_table(250, seed=2, unknown=0.02).write_csv(folder / "test.csv")
    return folder


def test_a_limit_on_seconds_is_kept_by_tune_evaluate_and_retune(folder, tmp_path):
    policy = tmp_path / "policy.json"
    asked = ["tune", folder / "train.csv", "--no-bands", "--error-cost", "0.01"]
    asked += ["--max-seconds", "p95=2.5", "--out", policy]
    document = json.loads(succeed(*asked, "--json"))
    own, expected = rcjax.load_policy(policy), document["policy"]["expected"]
    waits = np.array(waited(own, rcjax.read_log(folder / "train.csv").select(own.models)))
    assert expected["seconds"] == pytest.approx(waits.mean())
    assert all(set(FIGURES) <= set(point) and point["seconds_p95"] <= 2.5 for point in document["frontier"])
    shown = " ".join(succeed(*asked).split())
    assert "seconds, mean" in shown

    replayed = json.loads(succeed("evaluate", policy, folder / "train.csv", "--json"))
    assert {name: replayed["predicted"][name] for name in FIGURES} == {name: expected[name] for name in FIGURES}
    assert replayed["seconds"] == pytest.approx(waits.mean())
    assert "seconds, mean" in " ".join(succeed("evaluate", policy, folder / "train.csv").split())
