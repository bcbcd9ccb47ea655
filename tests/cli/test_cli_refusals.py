"""The command line: what is refused with status 1, in one line."""

import json

import pytest
from command_line import fail, run, succeed, write_folder

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("logs"))


def test_an_infeasible_target_names_what_can_be_reached(folder):
    result = run("tune", folder / "train.csv", "--no-bands", "--task", "choice", "--budget", "1e-9", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["frontier"]  # what could be had
    assert document["error"]["kind"] == "infeasible"
    assert result.stderr == f"error: {document['error']['message']}\n"
    assert result.stderr.startswith("error: no cascade costs $0.00100 per million queries or less")
    assert len(result.stderr.splitlines()) == 1
    cheapest = result.stderr.strip().rpartition("$")[2]
    enough = ["tune", folder / "train.csv", "--no-bands", "--task", "choice", "--budget", f"{cheapest}/M", "--json"]
    ladder = json.loads(succeed(*enough))["policy"]
    assert (ladder["rungs"][0]["models"], ladder["position"]) == (["small"], pytest.approx(0, abs=0.01))
    out = folder / "infeasible.json"
    shown = run("tune", folder / "train.csv", "--no-bands", "--task", "choice", "--max-error", "0.1%", "--out", out)
    assert shown.exit_code == 1
    assert not out.exists()
    assert "written" not in shown.stdout  # it was said of a file that is not there
    assert "frontier" in shown.stdout  # what could be had
    assert shown.stderr.startswith("error: ")


def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    message = fail("tune", tmp_path / "none.csv", "--error-cost", "1", "--out", tmp_path / "nowhere" / "policy.json")
    assert "no folder" in message
    assert "nowhere" in message
    assert "is a folder" in fail("tune", tmp_path / "none.csv", "--error-cost", "1", "--out", tmp_path)
