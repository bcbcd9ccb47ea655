"""`rcjax tune --posterior`, which runs for so long that it is compiled as for users."""

import json

import pytest
from command_line import succeed, write_folder

pytestmark = [pytest.mark.optimised, pytest.mark.thorough, pytest.mark.usefixtures("own_settings")]
pytest.importorskip("numpyro")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("logs"))


def test_policies_of_least_expected_loss(folder):
    tune = ["tune", folder / "train.csv", "--task", "choice", "--posterior", "--error-cost", "0.001"]
    shown = succeed(*tune)
    assert "90 % intervals" in shown


def test_with_refusals(folder):
    asked = ["tune", folder / "train.csv", "--task", "choice", "--no-bands", "--abstain-price", "0.2", "--posterior"]
    document = json.loads(succeed(*asked, "--lam", "1000", "--json"))
    assert document["policy"]["expected"]["abstention"] > 0
