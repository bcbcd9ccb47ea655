"""Differences from a reference, and scores, from tuning to the page: what is counted, and that it is called so."""

import html
import json
import re
from functools import partial

import pytest
from helpers.command_line import run
from helpers.reference_logs import write_answers
from helpers.scored_logs import write_scores

from rcjax.policy import load_policy

pytestmark = pytest.mark.usefixtures("own_settings")

N = 192
ANSWERS, SCORES = ["--task", "choice", "--reference", "large"], ["--score-max", "10"]
#: How logs are written, the options that read them, a target, what a policy records, and what is said, by the noun.
KINDS = {
    "difference": (
        *(write_answers, ANSWERS, ["--max-error", "12%"]),
        {"same_as": {"model": "large", "same": "answer", "counts": "differences"}},
        ("answers that differ from those of large (compared by answer), not wrong answers", "differs from large on"),
    ),
    "score lost": (
        *(partial(write_scores, most=10), SCORES, ["--max-error", "40%"], {"scores": {"most": 10.0}}),
        ("lost score, as a share of the full score, 10", "of the score, where"),
    ),
}
#: What speaks of right and wrong; a calibration has errors whatever is counted.
WORDS = r"\b(wrong|wrongly|errors?|errs?|erred|right|accuracy)\b"
WRONG = re.compile(rf"(?<!calibration )(?<!standard )(?<!squared ){WORDS}", re.I)
#: Where a reference is told from right and wrong; names of options.
ALLOWED = ("Errors are", "not wrong answers", "how often it errs cannot", "large may be wrong", "differs may be right")
ALLOWED += ("--max-error", "--error-cost", "the check is right if", "error: no ")


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    """(the noun, the folder of a log, a fresh and a worse one and a policy, what tune said)."""
    write, reading, target, *_ = KINDS[request.param]
    folder = tmp_path_factory.mktemp("error_kind")
    for seed, name in enumerate(("log.csv", "fresh.csv", "worse.csv")):
        write(folder / name, N, seed=seed, worse=name == "worse.csv")
    told = printed("tune", folder / "log.csv", *reading, *target, "--no-bands", "--out", folder / "policy.json")
    return request.param, folder, told


def printed(*line, status=0):
    result = run(*line)
    assert result.exit_code == status, (line, result.stdout, result.stderr, result.exception)
    return " ".join(f"{result.stdout} {result.stderr}".split())


def misnamed(said):
    """Return the passages that speak of errors, with some words around them, by the names of the texts."""
    found = {}
    for name, text in said.items():
        for words in ALLOWED:
            text = text.replace(words, "")
        found[name] = [text[max(0, word.start() - 40) : word.end() + 40] for word in WRONG.finditer(text)]
    return {name: words for name, words in found.items() if words}


@pytest.mark.thorough
def test_a_policy_is_held_to_what_it_was_tuned_for(kind):
    noun, folder, told = kind
    _, reading, target, recorded, (counted, does) = KINDS[noun]
    log, file = folder / "log.csv", folder / "policy.json"
    few = ["--models", "small,middle"] if noun == "difference" else []
    check = partial(printed, "check", file, folder / "worse.csv", "--no-retuning", status=1)
    checked = json.loads(check("--json"))
    said = {
        "tune": told,
        "a frontier": printed("tune", log, *reading, "--no-bands"),
        "out of reach": printed("tune", log, *reading, target[0], "0.01%", "--no-bands", *few, status=1),
        "evaluate": printed("evaluate", file, folder / "fresh.csv"),
        "check": check(),
        "advice": " ".join([*(one["advice"] for one in checked["findings"]), *checked["remarks"]]),
    }
    assert misnamed(said) == {}
    assert f"Errors are {counted}." in told
    assert re.search(f"expected ─+ {noun} ", told)
    assert f"at most {target[1].removesuffix('%')} % {noun}" in told
    assert re.search(f"the policy (loses .* )?{does}", said["advice"])
    assert (checked["error_kind"], checked["drifted"]) == (noun, True)
    printed("check", file, folder / "fresh.csv", "--no-retuning")
    policy = load_policy(file)
    assert recorded.items() <= policy.provenance.items()
    assert policy.expected["error"] <= float(target[1].removesuffix("%")) / 100 * (1 + 1e-9)
    seen = json.loads(run("evaluate", file, folder / "fresh.csv", "--json").stdout)
    if noun == "difference":
        assert seen["reference"]["reference"] == "large"
        assert seen["reference"]["differs"][0] == pytest.approx(seen["error"])
        assert seen["reference"]["errs"] is None
    else:  # not the interval of right and wrong
        low, high = seen["error_interval"]
        assert high - low == pytest.approx(2 * 1.645 * seen["error_se"], rel=0.05)


def test_no_promise_of_errors_stands_beside_differences(tmp_path):
    log, policy = write_answers(tmp_path / "log.csv", N, 0, labels=N), tmp_path / "policy.json"
    fresh = write_answers(tmp_path / "fresh.csv", N, 1)
    printed("tune", log, "--task", "choice", "--match", "9%", "--today", "large", "--no-bands", "--out", policy)
    seen = json.loads(run("evaluate", policy, fresh, "--reference", "large", "--json").stdout)
    assert (seen["check"], seen["promised"], "error" in seen["predicted"]) == (None, None, False)
    assert seen["comparison"]["rivals"][0]["error"] == 0.0  # of the reference


@pytest.mark.thorough
def test_screens_and_the_report_name_the_counted_quantity(kind):
    noun, folder, _ = kind
    _, reading, target, recorded, _ = KINDS[noun]
    page, log, worse = folder / "report.html", folder / "log.csv", folder / "worse.csv"
    tune, diagnose = ("tune", log, *reading, "--no-bands", target[0]), ("diagnose", log, *reading)
    retune = "retune", folder / "policy.json", folder / "fresh.csv", "--anyway", "--out", folder / "again.json"
    said = {
        "retune": printed(*retune),
        "check": printed("check", folder / "policy.json", worse, status=1),
        "guarantee": printed(*tune, target[1], "--confidence", "80%"),
        "no guarantee": printed(*tune, "1%", "--confidence", "95%", status=1),
        "diagnose": printed(*diagnose, "--all"),
        "drifted": printed(*diagnose, "--test", worse),
        "report": printed("report", log, *reading, *target, "--out", page),
    }
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    labels = " ".join(re.findall(r'label="([^"]*)"', shown))
    said["page"] = " ".join(html.unescape(f"{re.sub('<[^>]*>', ' ', shown)} {labels}").split())
    assert misnamed(said) == {}
    assert f"{noun.capitalize()} against cost" in said["page"]
    assert re.search(rf"guaranteed with 80 % confidence: .* it had \d+\.\d % {noun}", said["guarantee"])
    assert noun != "difference" or "than large alone, today's" in said["report"]  # which differs in nothing
    assert recorded.items() <= load_policy(folder / "again.json").provenance.items()
