"""Tables keep to a terminal of 80 or 120 columns, whatever errors are called, and no row beats another one there."""

import re
from itertools import pairwise

import jax
import pytest

from rcjax._base.figures import Money, format_number
from rcjax._core import compilation
from rcjax.cli import collect, inputs, tune
from rcjax.cli.app import start_jax
from rcjax.cli.collect import models_table
from rcjax.cli.console import Screen, cascade_lines, fold_names, make_table
from rcjax.policy.decisions import describe_cascade
from rcjax.solving.frontier.frontier import over_budget_message

pytestmark = pytest.mark.usefixtures("own_settings")

NAMES = ["llama3.2-1b", "llama3.1-8b-instruct", "llama3.1-405b-fp8"]
ROWS = [{"model": name, "accuracy": 0.7, "cost": 2e-4, "calibration_error": 0.02} for name in NAMES]


def point(cost, error, models=NAMES, **more):
    last = {"up_to": 1.0, "action": "answer"}
    rules = {name: [{"up_to": 0.43, "action": "ask", "model": later}, last] for name, later in pairwise(models)}
    return {"cost": cost, "error": error, "models": models, "rules": {**rules, models[-1]: [last]}, "lam": 1.0, **more}


INTERVAL = {"error_interval": [0.123, 0.157]}
MILLION, CHOSEN = Money(1e6, "million"), {"cost": 4e-5, "error": 0.31}
SECONDS = {"seconds": 1.25, "seconds_p95": 13.5}
KINDS = {
    "plain": {},
    "intervals": INTERVAL,
    "abstentions": {**INTERVAL, "abstention": 0.2},
    "seconds": {**INTERVAL, **SECONDS},
}


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("noun", ["error", "difference", "score lost"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_row_of_a_frontier_is_cut(capsys, monkeypatch, width, noun, kind):
    monkeypatch.setenv("COLUMNS", width)
    points = [point(2e-5 * (i + 1), 0.5 * 0.7**i, NAMES[i % 3 :], **KINDS[kind]) for i in range(4)]
    tune.show_tuning("A log.", ROWS, points, money=MILLION, noun=noun)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(width)
    shown = " ".join(" ".join(lines).split())
    assert "…" not in shown
    for i in range(4):
        assert f"{20 * (i + 1)}.0" in shown
    assert all(name in shown for name in [*NAMES, "a confidence"])
    assert shown.count(">0.43") == sum(len(one["models"]) - 1 for one in points)


def test_rows_that_another_row_beats_as_printed_are_left_out(capsys):
    """At $20.0 both: who reads the table would not know why the first is there; nor the last, which is dearer."""
    figures = ((2.0001e-5, 0.50), (2.0004e-5, 0.43), (4e-5, 0.31), (5e-5, 0.3099))
    rows = [row | {"accuracy": 0.6} for row in ROWS]
    tune.show_tuning("A log.", rows, [point(*one) for one in figures], chosen=[CHOSEN], money=MILLION)
    out = capsys.readouterr().out
    table = out[out.index("The frontier") :]
    assert [line.split()[:2] for line in table.splitlines() if "%" in line] == [["20.0", "43.0"], ["*", "40.0"]]
    assert "(2 of 4; --json lists all; * is that" in " ".join(table.split())


def test_a_model_that_is_the_best_buy_for_its_money_is_in_the_table(capsys):
    """On the hull, where few rows stand for all, and printed as a dearer cascade is; or a trifle above the hull."""
    cascades = [point(1e-6 * (i + 1), 0.5 * 0.9**i) for i in range(12)]
    cascades[4] = point(5e-6, 0.5 * 0.9**4, NAMES[:1])
    cascades.insert(5, point(5.0001e-6, 0.5 * 0.9**4 - 1e-5))
    rows = [
        {**ROWS[1], "cost": 8.5e-6, "accuracy": 1 - (0.5 * 0.9**7.5 + 5e-4)},
        {**ROWS[2], "cost": 9.5e-6, "accuracy": 0.6},
    ]
    tune.show_tuning("a log", [ROWS[0], *rows], cascades, money=MILLION, chosen=[{"cost": 1e-6, "error": 0.5}])
    shown = capsys.readouterr().out
    table = shown[shown.index("The frontier") :]
    assert re.search(rf"^ *5\.00 +32\.8 % +{re.escape(NAMES[0])} *$", table, re.MULTILINE)
    assert re.search(rf"^ *8\.50 +22\.7 % +{re.escape(NAMES[1])} *$", table, re.MULTILINE)
    assert not re.search(r"^ *9\.50", table, re.MULTILINE)  # it is none


def test_the_row_of_the_policy_chosen_is_starred(capsys):
    points = [point(1e-6 * (i + 1), 0.5 - 0.005 * i, NAMES[:1]) for i in range(60)]  # more than the table has rows for
    for chosen in points[::13]:
        tune.show_tuning("a log", ROWS, points, chosen=[chosen], money=MILLION)
        printed = capsys.readouterr().out
        assert "* is that for your target" in " ".join(printed.split())
        (starred,) = re.findall(r"^ *\* (\S+)", printed, re.MULTILINE)
        assert float(starred) == pytest.approx(1e6 * chosen["cost"])
    billed = points[20] | {"cost": 21.1e-6, "lam": 4.0}  # what it costs by the bills, beside what the model expects
    tune.show_tuning("a log", ROWS, [*points[:20], points[20] | {"lam": 4.0}], chosen=[billed], money=MILLION)
    assert re.search(r"^ *\* 21\.0 ", capsys.readouterr().out, re.MULTILINE)
    tune.show_tuning(
        "a log", ROWS, points, chosen=[{"cost": 1.5e-6, "error": 0.4}], money=MILLION
    )  # a mixture of two points
    assert "*" not in capsys.readouterr().out
    tune.show_tuning("a log", ROWS, points, chosen=points[30:32], money=MILLION)
    printed = capsys.readouterr().out
    assert re.findall(r"^ *\* (\S+)", printed, re.MULTILINE) == ["31.0", "32.0"]
    assert "(* marks the two policies that your target mixes)" in " ".join(printed.split())


def test_two_mixed_rows_that_are_printed_alike_are_both_in_the_table(capsys):
    """Twin models, at $100 and $100.01: each is the policy's, and no other row can make room for the second."""
    twins = [point(1e-4, 0.098, NAMES[:1]), point(1.0001e-4, 0.09799, NAMES[1:2])]
    rows = [row | {"accuracy": 0.9, "cost": 1e-4 + 1e-8 * i} for i, row in enumerate(ROWS[:2])]
    tune.show_tuning("a log", rows, twins, chosen=twins, money=MILLION)
    assert re.findall(r"^ *\* (\S+ +\S+)", capsys.readouterr().out, re.MULTILINE) == ["100   9.8"] * 2


LLAMAS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.mark.parametrize("width", range(38, 120, 7))
def test_lines_of_rules_keep_to_the_width(width):
    small, middle, large = LLAMAS
    ends = {small: ((0.4, middle), (0.7, large), (0.85, middle), (1.0, None)), middle: ((1.0, large),)}
    rules = {
        name: [{"up_to": end, "action": "ask" if model else "answer", "model": model} for end, model in table]
        for name, table in (ends | {large: ((1.0, None),)}).items()
    }
    text = describe_cascade({"models": LLAMAS, "rules": rules}, width)
    assert max(map(len, text.split("\n"))) <= width
    first = "llama3.2-1b: ≤0.40 → llama3.1-8b, ≤0.70 → llama3.1-70b, ≤0.85 → llama3.1-8b, else answer"
    assert text.replace("\n  ", " ").split("\n") == [first, "llama3.1-8b: → llama3.1-70b", "llama3.1-70b"]


def test_cascades_are_shown_whole():
    """A model that always asks on has no threshold; a mixture shows all its rules, however short the first."""
    always, last = {"up_to": 1.0, "action": "ask", "model": "b"}, [{"up_to": 1.0, "action": "answer"}]
    rules = {"a": [always], "b": [{"up_to": 0.4, "action": "ask", "model": "c"}, *last], "c": last}
    chain = {"models": ["a", "b", "c"], "rules": rules, "agreements": {"b": {"earlier": "a", "model": "c"}}}
    assert describe_cascade(chain) == "a → b, agree? → c"
    skips = {
        "models": ["a", "c"],
        "rules": {"a": [always | {"up_to": 0.4, "model": "c"}, always | {"model": "c"}], "c": last},
    }
    told = ["a: ≤0.40 → c, else → c", "c"]
    assert cascade_lines({"position": 0.25, "rungs": [chain, skips]}) == [
        "  75.0 % of the queries: a → b, agree? → c",
        "  25.0 % of the queries:",
        *(f"    {line}" for line in told),
    ]


def test_a_probe_names_models_that_give_only_log_probabilities_of_their_own_tokens(capsys):
    row = {"error": None, "samples": True, "counted": True, "seconds": 1.0, "signals": ["stated"], "cost": 0.0}
    tops = {"all": 20, "own": 1, "none": 0}
    row |= {"unusable": None, "wrong_signal": None}
    rows = [row | {"model": name, "logprobs": top > 0, "top": top} for name, top in tops.items()]
    collect._show_probe(rows)
    notes = [line for line in capsys.readouterr().out.splitlines() if "of its own tokens" in line]
    assert [line.split()[:2] for line in notes] == [["note", "own:"]]


def test_compiled_programs_are_kept_in_an_existing_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RCJAX_CACHE_DIR", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    start_jax()
    assert compilation._FILES


@pytest.mark.parametrize("cheapest", [1.82154e-5, 1.0000049e-5, 9.99996e-5, 0.314159])
def test_the_cheapest_shown_cost_is_a_feasible_budget(cheapest):
    scale = 1e6 if cheapest < 0.1 else 1e3
    told, advised = over_budget_message(cheapest / 2, cheapest).rpartition("$")[2].split(": give --budget ")
    assert cheapest <= float(told) / scale <= cheapest * 1.002
    assert cheapest * (1 - 1e-9) <= inputs.money(advised.removesuffix(" or more")) <= cheapest * 1.01


def test_a_figure_has_three_digits_once_it_is_rounded():
    texts = {9.999: "10.0", 10.04: "10.0", 999.6: "1,000", 0.0009999: "0.00100", 1e-24: "1.00e-24", 1e100: "1.00e+100"}
    assert {value: format_number(value) for value in texts} == texts


def test_signals_and_figures_of_a_collection_are_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    row = {"answers": 12_000, "failed": 1_200, "accuracy": 0.71, "separation": 0.66, "cost": 2.3e-4}
    long = "qwen2.5-32b-coder-instruct"
    rows = [row | {"model": name} for name in (long, "m")]
    Screen().print(models_table(rows, "accuracy", {long: "verification", "m": "stated"}))
    out = capsys.readouterr().out
    assert "…" not in out
    assert out.count("verification") == 1
    assert re.sub(r"\s|─|verification.*", "", out).count("qwen2.5") == 1
    assert max(map(len, out.splitlines())) <= 80


def test_a_long_name_is_folded_and_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    long = "meta-llama/llama-3.1-405b-instruct-fp8-dynamic-with-a-name-that-no-terminal-holds"
    table = make_table("model", "error", unbroken=True)
    fold_names(table)
    table.add_row(long, "12.3 %")
    Screen().print(table)
    assert long in "".join(line.replace("12.3 %", "").strip() for line in capsys.readouterr().out.splitlines())
