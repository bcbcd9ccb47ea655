"""The command of a page gives a ladder that errs no more than the policy which the page shows, for its money."""

import dataclasses
import html
import json
import re
import shlex

import numpy as np
import pytest
from command_line import TOKEN_PRICES, rows_of, succeed, write_log
from page_samples import embedded
from reference_logs import write_answers

import rcjax
from rcjax._base.wording import percent
from rcjax.policy.counted import Reference
from rcjax.policy.targets import Target
from rcjax.report.page import _command, _model, _target
from rcjax.tuning.tune import describe_models

pytestmark = pytest.mark.usefixtures("own_settings", "float64")

TOKENS = "query,model,logprob,correct,input_tokens,output_tokens"


def shown(path):
    """(the command of a page, its points, the place of the one that it begins with)."""
    page = path.read_text("utf-8")
    code = re.search(r'<pre id="command".*?><code>(.*?)</code>', page, re.DOTALL)
    assert code
    command = html.unescape(re.sub(r"<[^>]+>", "", code[1]))
    points = embedded(page)
    return command, points, len(points) - 1 - int(re.search(r'id="slider".*?value="(\d+)"', page)[1])


@pytest.mark.thorough
def test_the_command_gives_the_policies_of_the_page(tmp_path):
    log = write_log(tmp_path / "my log.csv", rows_of(seed=0, n=96), TOKENS)
    prices, out = tmp_path / "prices.json", tmp_path / "out.html"
    prices.write_text(json.dumps({name: {"input": price, "output": price} for name, price in TOKEN_PRICES.items()}))
    how = ("--prices", prices, "--models", "small,large", "--task", "choice")
    succeed("report", log, *how, "--budget", "0.08/k", "--out", out)
    command, points, start = shown(out)
    assert command.startswith(f"rcjax tune '{log}' --prices {prices} --task choice --models small,large")
    assert command.endswith(" --budget 80/M --out policy.json")  # as it was asked, not what it comes to
    other = next(index for index, point in enumerate(points) if point["target"] and index != start)
    for index in (start, other):
        words = shlex.split(command.replace(points[start]["target"], points[index]["target"], 1))
        succeed(*words[1:-1], tmp_path / "policy.json", "--no-bands")
        ladder, expected = rcjax.load_policy(tmp_path / "policy.json"), points[index]["policy"]["expected"]
        assert ladder.expected["error"] <= expected["error"] + 1e-3, words


@pytest.mark.thorough
def test_no_other_kind_of_target_is_named(report):
    """Errors of cascades are corrected for the kind that they were tuned for: another one may choose another."""
    frontier = report.frontier
    for kind, option in (("budget", "--budget"), ("max_error", "--max-error"), ("error_cost", "--error-cost")):
        selection = dataclasses.replace(report.selection, target=kind)
        texts = [_target(dataclasses.replace(report, selection=selection), i) for i in range(len(frontier.lam))]
        for index, text in enumerate(texts):
            if not text:
                continue
            name, value = text.split(" ")
            amount = float(value.removesuffix("/M")) / (1e6 if kind == "budget" else 1)
            assert name == option
            assert frontier.choose(**{kind: amount}) == index
        assert sum(map(bool, texts)) > (1 if kind == "error_cost" else 0.8 * len(texts))
    lam = float(np.asarray(frontier.lam)[3])
    begun = dataclasses.replace(report, target=Target("lam", lam))
    assert _target(begun, begun.chosen) == f"--error-cost {1 / lam:.10g}"  # as it was asked


@pytest.mark.thorough
def test_a_log_with_a_reference_is_read_with_it(tmp_path):
    path = write_answers(tmp_path / "log.csv", 60, seed=0)
    log = rcjax.read_log(path, task="choice", reference=Reference("large", counts="differences"))
    assert _command(log) == "rcjax tune log.csv --task choice --reference large"


@pytest.mark.thorough
def test_the_model_table_has_the_figures_of_tune(report):
    tuned = {one.model: percent(one.calibration_error) for one in describe_models(report.log, report.model)}
    rows = [_model(report, j, report.money) for j in range(len(tuned))]
    assert {row["model"]: row["calibration"] for row in rows} == tuned
