"""The command line: what is refused with status 1, in one line."""

import json

import pytest
from command_line import fail, run, succeed, write_folder, write_log

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
    assert json.loads(succeed(*enough))["policy"]["models"] == ["small"]
    out = folder / "infeasible.json"
    shown = run("tune", folder / "train.csv", "--no-bands", "--task", "choice", "--max-error", "0.1%", "--out", out)
    assert shown.exit_code == 1
    assert not out.exists()
    assert "written" not in shown.stdout  # it was said of a file that is not there
    assert "frontier" in shown.stdout  # what could be had
    assert shown.stderr.startswith("error: ")


def test_a_bad_row_is_named(tmp_path):
    rows = [(i, name, -0.5, i % 2, 1.0) for i in range(4) for name in ("small", "large")]
    rows[3] = (1, "large", 0.5, 1, 1.0)
    message = fail("tune", write_log(tmp_path / "bad.csv", rows))
    assert "bad.csv, line 5, model large: logprob 0.5" in message


def test_missing_files_are_named(folder, tmp_path):
    assert "none.csv" in fail("tune", tmp_path / "none.csv")
    assert "none.json" in fail("evaluate", tmp_path / "none.json", folder / "test.csv")
    assert "none.toml" in fail("tune", folder / "train_tokens.csv", "--no-bands", "--prices", tmp_path / "none.toml")


@pytest.mark.thorough
def test_unknown_models_are_named(folder):
    assert "'huge'" in fail("tune", folder / "train.csv", "--no-bands", "--models", "small,huge")
    assert "'huge'" in fail("tune", folder / "train.csv", "--no-bands", "--cascade", "small,huge")
    assert "'huge'" in fail(
        "tune", folder / "train.csv", "--no-bands", "--models", "small,large", "--cascade", "small,huge"
    )


def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    message = fail("tune", tmp_path / "none.csv", "--frontier", tmp_path / "nowhere" / "frontier.json")
    assert "no folder" in message
    assert "nowhere" in message
    assert "is a folder" in fail("tune", tmp_path / "none.csv", "--error-cost", "1", "--out", tmp_path)


def test_a_file_that_is_no_policy(folder, tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"format": "rcjax-model"}')
    assert "its format is 'rcjax-model'" in fail("evaluate", path, folder / "test.csv")
    path.write_text('{"format": "rcjax-policy", "schema_version": 1')
    assert "other.json: not JSON" in fail("evaluate", path, folder / "test.csv")
    path.write_text('{"format": "rcjax-frontier"}')
    assert "other.json" in fail("evaluate", path, folder / "test.csv")
    path.write_text("[1]")
    assert "other.json" in fail("evaluate", path, folder / "test.csv")


@pytest.mark.thorough
def test_a_log_without_a_model_of_the_policy(folder, tmp_path):
    out = tmp_path / "frontier.json"
    succeed("tune", folder / "train.csv", "--no-bands", "--task", "choice", "--frontier", out)
    rows = (folder / "test.csv").read_text().splitlines(keepends=True)
    (tmp_path / "pair.csv").write_text("".join(row for row in rows if "middle" not in row))
    assert "'middle'" in fail("evaluate", out, tmp_path / "pair.csv")
