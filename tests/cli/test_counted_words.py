"""What is counted is called by its name in all that commands print and pages show: no errors where there are none."""

import html
import json
import re

import pytest
from command_line import run
from reference_logs import write_answers
from scored_logs import write_scores

pytestmark = pytest.mark.usefixtures("own_settings")

N = 192
#: How logs are written, the options that read them, and a target, by what is then counted.
KINDS = {
    "difference": (write_answers, ["--task", "choice", "--reference", "large"], ["--max-difference", "12%"]),
    "score lost": (write_scores, [], ["--max-error", "40%"]),
}
#: What speaks of right and wrong; a calibration has errors whatever is counted.
WRONG = re.compile(
    r"(?<!calibration )(?<!standard )(?<!squared )\b(wrong|wrongly|errors?|errs?|erred|right|accuracy)\b", re.I
)
#: Where a reference is told from right and wrong; the names of options, of nothing that was counted.
ALLOWED = ("not whether they are right", "how often it errs cannot", "large may be wrong", "differs may be right")
ALLOWED += ("--max-error", "--error-cost", "the check is right if", "error: no ")


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    """(the noun, the folder of a log, a fresh and a worse one and a policy, options that read them, what tune said)."""
    write, reading, target = KINDS[request.param]
    folder = tmp_path_factory.mktemp("counted")
    for seed, name in enumerate(("log.csv", "fresh.csv", "worse.csv")):
        write(folder / name, N, seed=seed, worse=name == "worse.csv")
    options = [*reading, *target, "--no-bands"]
    told = run("tune", folder / "log.csv", *options, "--out", folder / "policy.json")
    assert told.exit_code == 0, (told.stderr, told.exception)
    return request.param, folder, reading, target, told.stdout


def misnamed(text):
    """What of a text speaks of errors, with some words around it."""
    text = " ".join(text.split())
    for words in ALLOWED:
        text = text.replace(words, "")
    return [text[max(0, found.start() - 40) : found.end() + 40] for found in WRONG.finditer(text)]


def printed(*line, status=(0,)):
    result = run(*line)
    assert result.exit_code in status, (line, result.stderr, result.exception)
    return result.stdout + result.stderr


def test_screens_of_a_policy(kind):
    noun, folder, reading, target, told = kind
    policy, log = folder / "policy.json", folder / "log.csv"
    said = {
        "tune": told,
        "a frontier": printed("tune", log, *reading, "--no-bands"),
        "out of reach": printed("tune", log, *reading, target[0], "0.01%", "--models", "small,middle", status=(1,))
        if noun == "difference"
        else printed("tune", log, *reading, target[0], "0.01%", "--no-bands", status=(1,)),
        "evaluate": printed("evaluate", policy, folder / "fresh.csv"),
        "check": printed("check", policy, folder / "worse.csv", "--no-retuning", status=(1,)),
        "check, as JSON": printed("check", policy, folder / "worse.csv", "--no-retuning", "--json", status=(1,)),
    }
    advice = json.loads(said.pop("check, as JSON"))
    said["advice"] = " ".join([*(check["advice"] for check in advice["checks"]), *advice["remarks"]])
    assert {name: misnamed(text) for name, text in said.items() if misnamed(text)} == {}
    assert f"expected {noun}" in told
    assert f"at most {target[1].removesuffix('%')} % {noun}" in told
    assert ("the policy differs from large on" if noun == "difference" else "of the score, where") in said["advice"]


@pytest.mark.thorough
def test_screens_that_tune_again_and_a_page(kind):
    noun, folder, reading, target, _ = kind
    page, log = folder / "report.html", folder / "log.csv"
    retune = "retune", folder / "policy.json", folder / "fresh.csv", "--anyway", "--out", folder / "again.json"
    said = {
        "retune": printed(*retune),
        "check": printed("check", folder / "policy.json", folder / "worse.csv", status=(1,)),
        "guarantee": printed("tune", log, *reading, *target, "--no-bands", "--confidence", "80%"),
        "no guarantee": printed(
            *("tune", log, *reading, target[0], "1%", "--no-bands", "--confidence", "95%"), status=(1,)
        ),
        "diagnose": printed("diagnose", log, *reading, "--replicates", 20, "--all"),
        "drifted": printed("diagnose", log, *reading, "--test", folder / "worse.csv", "--replicates", 20),
        "report": printed("report", log, *reading, *target, "--out", page),
    }
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    labels = " ".join(re.findall(r'label="([^"]*)"', shown))
    said["page"] = html.unescape(f"{re.sub('<[^>]*>', ' ', shown)} {labels}")
    assert {name: misnamed(text) for name, text in said.items() if misnamed(text)} == {}
    assert f"{noun.capitalize()} against cost" in said["page"]
    assert re.search(
        rf"guaranteed with 80 % confidence: .* it had \d+\.\d % {noun}", " ".join(said["guarantee"].split())
    )
    if noun == "difference":  # which the baseline does not have, and that is no news
        assert "Asking large for everything costs $" in said["report"]
