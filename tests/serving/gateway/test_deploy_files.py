"""The systemd unit and the container files give `rcjax serve` existing options, and time to end."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from rcjax.cli.app import load

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "rcjax" / "docs" / "deploy"
UNIT = (DEPLOY / "rcjax.service").read_text("utf-8")
CONTAINER = (DEPLOY / "Containerfile").read_text("utf-8").replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]["rcjax"]


def unit_line():
    (line,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", UNIT, re.MULTILINE)
    return shlex.split(line.replace("\\\n", " ").replace("%%", "%"))


def container_line():
    words = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", CONTAINER, re.MULTILINE))
    return json.loads(words["ENTRYPOINT"]) + json.loads(words["CMD"])


@pytest.mark.parametrize("line", [unit_line(), container_line()], ids=["systemd", "container"])
def test_the_command_has_options_that_serve_accepts(line):
    assert line[:2] == ["/opt/rcjax/bin/rcjax", "serve"]
    command = load("serve")
    options = command.make_context("serve", line[2:]).params
    assert (options["policy"], options["models"]) == (Path("/etc/rcjax/policy.json"), Path("/etc/rcjax/models.toml"))
    assert (options["log"], options["shadow"]) == (Path("/var/log/rcjax/calls.jsonl"), 0.05)
    assert options["key_env"] == "RCJAX_KEYS"
    for seconds in (re.search(r"TimeoutStopSec=(\d+)", UNIT)[1], COMPOSE["stop_grace_period"].removesuffix("s")):
        assert int(seconds) > 2 * options["drain"] + 5


def test_the_image_copies_existing_files_and_installs_existing_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r"--requirements (\S+)", CONTAINER)
    assert {*extras.split(",")} <= {*project["optional-dependencies"]}
    for copied in re.findall(r"^COPY (?!--from)(.*) /src", CONTAINER, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())


def test_a_service_alone_needs_what_the_command_line_is_made_of():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    shown = {line for line in project["dependencies"] if line.startswith(("rich", "typer"))}
    assert len(shown) == 2
    assert shown <= {*project["optional-dependencies"]["serve"]}
