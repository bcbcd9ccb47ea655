"""Labels of another alphabet than the answers: every command that reads them stops, and no honest log is refused."""

import math
import warnings
from collections import Counter

import numpy as np
import polars as pl
import pytest
from command_line import run

import rcjax
from rcjax.logs import LeftOutWarning
from rcjax.logs.alphabets import guessing

pytestmark = pytest.mark.usefixtures("own_settings")

LETTERS = ("A", "B", "C", "D")
TEAMS = {"A": "Billing", "B": "Refunds", "C": "Shipping", "D": "Other"}


def log_of(n, abilities, seed=0, choices=LETTERS, shares=None):
    """(a log of models that answer by letters without a column correct, the right answers by query)."""
    rng = np.random.default_rng(seed)
    right = rng.choice(choices, n, p=shares)
    rows = []
    for place, (model, ability) in enumerate(abilities.items()):
        for query in range(n):
            is_right = rng.random() < ability
            others = [one for one in choices if one != right[query]]
            answer = right[query] if is_right else rng.choice(others)
            sure = (0.6 + 0.39 * rng.random()) if is_right else (0.3 + 0.5 * rng.random())
            row = {"query": f"q{query}", "model": model, "logprob": math.log(sure), "cost": 1e-5 * 20**place}
            rows.append(row | {"answer": str(answer)})
    return pl.DataFrame(rows), {f"q{query}": str(label) for query, label in enumerate(right)}


def table_of(labels):
    return pl.DataFrame({"query": [*labels], "answer": [*labels.values()]})


def test_labels_of_two_alphabets_are_counted():
    """Half of them in words: a log of 0.9 came out as one of 0.45, without a word."""
    frame, right = log_of(120, {"small": 0.7, "large": 0.9})
    half = {query: TEAMS[label] if place % 2 else label for place, (query, label) in enumerate(right.items())}
    with pytest.warns(LeftOutWarning, match="60 of 120 labelled queries have a label that no model ever gives"):
        rcjax.read_log(frame, task="choice", labels=table_of(half))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        rcjax.read_log(frame, task="choice", labels=table_of(right | {"q0": "E"}))


def test_every_command_that_reads_labels_stops_where_they_are_of_another_alphabet(tmp_path):
    frame, right = log_of(120, {"small": 0.7, "large": 0.9})
    frame.write_csv(tmp_path / "log.csv")
    table_of(right).write_csv(tmp_path / "labels.csv")
    table_of({query: TEAMS[label] for query, label in right.items()}).write_csv(tmp_path / "teams.csv")
    log, policy, out = tmp_path / "log.csv", tmp_path / "policy.json", tmp_path / "out.json"
    tune = ("tune", log, "--task", "choice", "--budget", "150/M", "--no-bands", "--labels")
    assert run(*tune, tmp_path / "labels.csv", "--out", policy).exit_code == 0
    lines = [
        (*tune, tmp_path / "teams.csv", "--out", out),
        *[(name, policy, log, "--labels", tmp_path / "teams.csv") for name in ("evaluate", "check", "retune")],
        *[(name, log, "--task", "choice", "--labels", tmp_path / "teams.csv") for name in ("diagnose",)],
        ("report", log, "--task", "choice", "--labels", tmp_path / "teams.csv", "--out", tmp_path / "page.html"),
        (
            "label",
            log,
            "--task",
            "choice",
            "--labels",
            tmp_path / "teams.csv",
            "--budget",
            "150/M",
            "--out",
            out.with_suffix(".csv"),
        ),
    ]
    misses = []
    for line in lines:
        result = run(*line)
        words = " ".join((result.stderr + result.stdout).split())
        if result.exit_code not in (1, 2) or "no label equals any answer (labels: " not in words:
            misses.append((line[0], result.exit_code, words))
        elif not all(team in words for team in ("; answers: ", "teams.csv")):
            misses.append((line[0], words))
    assert not misses
    assert not out.exists()


def test_labels_and_answers_are_both_named():
    frame, right = log_of(40, {"small": 0.7, "large": 0.9})
    teams = table_of(dict.fromkeys(right, "Billing"))
    with pytest.raises(
        rcjax.LogError, match=r"no label equals any answer \(labels: Billing; answers: [A-D], [A-D], [A-D]…\)"
    ):
        rcjax.read_log(frame, labels=teams)


def test_labels_that_share_letters_with_another_alphabet_are_worse_than_guessing():
    """The first choice is 0 for one side, and 1 for the other; and yes stands for no."""
    numbers = dict(zip(LETTERS, "1234", strict=True))
    frame, right = log_of(120, {"small": 0.7, "large": 0.95})
    counted = frame.with_columns(answer=pl.col("answer").replace(numbers))
    shifted = table_of({query: str(int(numbers[label]) - 1) for query, label in right.items()})
    with pytest.raises(rcjax.LogError, match="every model is right less often than by guessing"):
        rcjax.read_log(counted, labels=shifted)
    frame, right = log_of(120, {"small": 0.75, "large": 0.95}, choices=("yes", "no"))
    turned = table_of({query: {"yes": "no", "no": "yes"}[label] for query, label in right.items()})
    with pytest.raises(rcjax.LogError, match="guessing"):
        rcjax.read_log(frame, labels=turned)
    correct = frame.join(turned.rename({"answer": "right"}), on="query")
    by_hand = correct.select("query", "model", correct=(pl.col("answer") == pl.col("right")).cast(pl.Int8))
    assert rcjax.read_log(frame, labels=by_hand).n_queries == 120  # whoever insists is believed


#: Logs that are what they say: how many queries, how able the models, which choices, how often each is right.
HONEST = {
    "guessing models": (400, {"small": 0.25, "large": 0.25}, LETTERS, None),
    "one that is worse than guessing": (400, {"small": 0.05, "large": 0.3}, LETTERS, None),
    "labels nearly all of one kind": (400, {"small": 0.8, "large": 0.85}, ("no", "yes"), (0.97, 0.03)),
    "few queries, all wrong": (8, {"small": 0.0, "large": 0.0}, LETTERS, None),
    "two queries in words, all wrong": (2, {"small": 0.0, "large": 0.0}, tuple(f"word {i}" for i in range(200)), None),
    "free text, mostly wrong": (300, {"small": 0.02, "large": 0.05}, tuple(f"word {i}" for i in range(200)), None),
}


def test_no_honest_log_is_refused():
    misses = []
    for name, (n, abilities, choices, shares) in HONEST.items():
        for seed in range(5):
            frame, right = log_of(n, abilities, seed, choices, shares)
            try:
                rcjax.read_log(frame, labels=table_of(right))
            except rcjax.LogError as problem:
                misses.append((name, seed, str(problem)))
    assert not misses


def test_guessing():
    even = Counter(dict.fromkeys(LETTERS, 10))
    cases = [(even, even, 0.25), (even, Counter(A=40), 0.25), (Counter(A=40), Counter(A=39, B=1), 0.5)]
    assert [guessing(*sides) for *sides, _ in cases] == [pytest.approx(luck) for *_, luck in cases]


def test_right_answers_among_other_words_are_said_to_count_as_wrong():
    """Small models answer in sentences: a check of their service said that they had drifted."""
    cities = ["Paris", "Rome", "Oslo", "Cairo", "Lima", "Riga", "Kyiv", "Bonn"]
    rows = [
        {"query": index, "model": model, "confidence": 0.6, "cost": 1, "answer": answer}
        for index, city in enumerate(cities)
        for model, answer in (("small", f"It is {city}."), ("large", city))
    ]
    labels = pl.DataFrame({"query": range(len(cities)), "answer": cities})
    with pytest.warns(LeftOutWarning, match="8 of 16 answers are wrong that have the right one among other words"):
        log = rcjax.read_log(pl.DataFrame(rows), labels=labels)
    assert log.correct.tolist() == [[False, True]] * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        rcjax.read_log(
            pl.DataFrame(rows).with_columns(answer=pl.col("answer").str.replace("It is ", "in")), labels=labels
        )
