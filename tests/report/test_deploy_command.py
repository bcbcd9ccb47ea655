"""The command of a page gives the policy which the page shows."""

import html
import json
import re
import shlex

import pytest
from helpers.command_line import TOKEN_PRICES, rows_of, succeed, write_log
from helpers.page_samples import embedded

import rcjax

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
    assert command.endswith(" --budget 80/M --today large --out policy.json")  # as it was asked, not what it comes to
    other = next(index for index, point in enumerate(points) if point["target"] and index != start)
    for index in (start, other):
        words = shlex.split(command.replace(points[start]["target"], points[index]["target"], 1))
        succeed(*words[1:-1], tmp_path / "policy.json", "--no-bands")
        ladder, expected = rcjax.load_policy(tmp_path / "policy.json"), points[index]["policy"]["expected"]
        assert [ladder.expected[name] for name in ("error", "cost")] == pytest.approx(
            [expected["error"], expected["cost"]]
        )
