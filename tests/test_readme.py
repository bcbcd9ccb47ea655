import re
import shlex
from pathlib import Path

import pytest
import typer

from rcjax.cli import app
from rcjax.diagnostics import LIMITS
from rcjax.logs import read_log
from rcjax.policy import Calibration, Policy, Rule

README = Path(__file__).parents[1] / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands():
    """Every `rcjax COMMAND …` of the shell blocks, alone or at the end of a one-liner."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return [part for part in parts if part.startswith("rcjax ")]


def make_policy():
    calibration = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
    return Policy(
        models=("small", "large"),
        calibrations={"small": calibration, "large": calibration},
        rules={"small": [Rule(0.7, "ask", "large"), Rule(1, "answer")], "large": [Rule(1, "answer")]},
        cost={"small": 1e-5, "large": 2e-4},
    )


def test_the_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_policy().save("policy.json")
    namespace = {}
    for number, block in enumerate(blocks("python")):
        exec(compile(block, f"README.md, python block {number}", "exec"), namespace)
        if "answer" in block:
            assert namespace["answer"]("?", lambda model, query: (model, -1e-9)) == "small"
            assert namespace["answer"]("?", lambda model, query: (model, -2.0)) == "large"
    printed = capsys.readouterr().out
    assert re.search(r"^error 0\.\d+ ± 0\.\d+, predicted 0\.\d+$", printed, re.MULTILINE)
    assert re.search(r"^area 0\.\d+$", printed, re.MULTILINE)
    assert "nan" not in printed
    assert Policy.load("policy.json").expected["cost"] <= 150e-6 * (1 + 1e-5)


@pytest.mark.parametrize("command", commands())
def test_the_options_exist(command):
    _, name, *arguments = shlex.split(command)
    known = {
        option
        for parameter in typer.main.get_command(app).commands[name].params
        for option in [*parameter.opts, *parameter.secondary_opts]
    }
    assert {argument for argument in arguments if argument.startswith("-")} <= known


def test_the_readme_shows_every_command():
    assert {shlex.split(command)[1] for command in commands()} == {"demo", "tune", "evaluate", "diagnose", "report"}


def test_the_limits_are_those_of_the_checks():
    text = README.read_text("utf-8")
    for name, limits in LIMITS.items():
        (cells,) = re.findall(rf"^\| {name} \|.*\|(.*)\|(.*)\|$", text, re.MULTILINE)
        for cell, limit in zip(cells, (limits.doubtful, limits.bad), strict=True):
            number, percent = re.search(r"([\d.]+)( %)?", cell).groups()
            assert float(number) / (100 if percent else 1) == pytest.approx(limit), name


def test_the_example_files_can_be_read(tmp_path):
    (csv,), (toml,) = blocks("csv"), blocks("toml")
    (tmp_path / "log.csv").write_text(csv)
    (tmp_path / "prices.toml").write_text(toml)
    log = read_log(tmp_path / "log.csv", prices=tmp_path / "prices.toml", task="choice")
    assert log.models == ("small-1.5b", "large")
    assert log.n_queries == 2
