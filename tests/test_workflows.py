"""The workflows and forms of the repository: they say what pyproject.toml and .ci/run say."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
FORMS = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def commands(workflow):
    return [step.get("run", "") for job in workflow["jobs"].values() for step in job.get("steps", ())]


def test_every_python_that_is_promised_is_tested():
    told = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    (matrix,) = (job["strategy"]["matrix"] for job in WORKFLOWS["tests"]["jobs"].values() if "strategy" in job)
    assert {*matrix["python"]} == told
    assert PROJECT["requires-python"] == ">=" + min(told, key=lambda text: int(text.partition(".")[2]))
    assert any(".ci/run" in line for line in commands(WORKFLOWS["tests"]))


def test_no_workflow_may_write_but_where_it_publishes():
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for job, about in workflow["jobs"].items():
            if about.get("permissions"):
                assert (name, job) in {("release", "publish"), ("release", "pages")}
                assert about["environment"]


def test_nothing_is_published_before_tests_and_site_are_there():
    jobs = WORKFLOWS["release"]["jobs"]
    assert {*jobs["publish"]["needs"]} == {"build", "site", "tests"}
    assert jobs["pages"]["needs"] == "publish"
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")


def test_the_changelog_has_the_version():
    text = (ROOT / "rcjax" / "docs" / "changelog.md").read_text("utf-8")
    newest, told = re.search(r"^## (\d+\.\d+\.\d+), (.+)$", text, re.MULTILINE).groups()
    assert newest == PROJECT["version"]
    assert told == "not yet released" or re.fullmatch(r"\d{4}-\d\d-\d\d", told)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_ask_for_ten_rows_of_a_log(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "body"} <= {*form}
    fields = {part["id"]: part["attributes"] for part in form["body"]}
    assert "ten rows" in fields["rows"]["label"].lower()
    assert "keys" in fields["rows"]["description"]
