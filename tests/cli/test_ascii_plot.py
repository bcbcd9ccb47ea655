import re

import pytest
from misses import in_turn

from rcjax._base.wording import choose_unit
from rcjax.cli.tables import show_tuning, sketch

ROWS = [
    {"model": "small", "cost": 1e-5, "accuracy": 0.5},
    {"model": "large", "cost": 1e-4, "accuracy": 0.9},
]
POINTS = [{"cost": 1e-4, "error": 0.1}, {"cost": 1e-5, "error": 0.4}, {"cost": 5e-5, "error": 0.2}]
MONEY = choose_unit([1e-4])


def place(drawing: str, mark: str) -> tuple[int, int]:
    """Row and column of a character that the drawing, without its legend, holds once."""
    found = [
        (i, line.index(mark)) for i, line in enumerate(drawing.split("error against")[0].split("\n")) if mark in line
    ]
    assert len(found) == 1
    return found[0]


def test_models_and_the_policy_are_where_they_belong():
    drawing = sketch(POINTS, ROWS, MONEY, {"cost": 5e-5, "error": 0.2})
    small, large, chosen = (place(drawing, mark) for mark in "AB◆")
    assert small[0] < chosen[0] < large[0]  # a larger error is further up
    assert small[1] < chosen[1] < large[1]
    assert large[0] - chosen[0] == pytest.approx((chosen[0] - small[0]) / 3, abs=1.01)  # 20 to 10 %, 50 to 20 %


def test_the_curve_goes_through_the_points_in_order_of_cost():
    lines = sketch(POINTS, [], MONEY).split("error against")[0].split("\n")
    columns = [line.index("·") for line in lines if "·" in line]
    assert len(columns) > 8
    assert columns == sorted(columns)


def test_the_legend_names_everything_that_is_drawn():
    text = sketch(POINTS, ROWS, MONEY, POINTS[0])
    for words in ("$ per million queries", "· the frontier", "◆ your target", "A small", "B large"):
        assert words in text
    assert "your target" not in sketch(POINTS, ROWS, MONEY)


@pytest.mark.parametrize("colour", [False, True])
def test_colour_is_in_it_only_if_asked_for(colour):
    assert ("\x1b[" in sketch(POINTS, ROWS, MONEY, POINTS[0], colour=colour)) == colour


def test_lines_fit_a_terminal_of_80():
    many = [{"model": f"provider/model-{i}", "cost": 1e-6 * (i + 1), "accuracy": 0.5} for i in range(30)]
    assert max(len(line) for line in sketch(POINTS, many, MONEY).split("\n")) <= 80


@pytest.mark.parametrize("far", [{"cost": 1e-5, "accuracy": 0.2}, {"cost": 3e-4, "accuracy": 0.9}])
def test_a_model_far_from_the_frontier_leaves_it_its_room(far):
    drawing, plain = (sketch(POINTS, rows, MONEY) for rows in ([*ROWS, far | {"model": "odd"}], ROWS))
    assert "C odd (far off)" in drawing
    assert place(drawing, "A") == place(plain, "A")
    assert place(drawing, "B") == place(plain, "B")


def test_a_frontier_of_one_point():
    assert "·" in sketch(POINTS[:1], ROWS[:1], MONEY)
    sketch(POINTS[:1], ROWS[1:], MONEY)
    sketch(POINTS[:1], [], MONEY)  # no range at all
    sketch([{"cost": 0.0, "error": 0.0}], [{"model": "free", "cost": 0.0, "accuracy": 1.0}], MONEY)


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
    ids=["no terminal", "terminal", "NO_COLOR"],
)
def test_tune_shows_colours_on_terminals_that_want_them(environment, coloured, monkeypatch, capsys):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    rows = [row | {"calibration_error": 0.05, "certain": 0.0} for row in ROWS]
    points = [point | {"models": ["small"], "thresholds": {"small": 0.0}, "lam": 10.0} for point in POINTS]
    show_tuning("a log", rows, points, chosen=POINTS[0], drawn=True)
    printed = capsys.readouterr().out
    assert (re.search(r"\x1b\[[0-9;]*3[0-9]", printed) is not None) == coloured
    assert "◆" in printed


def test_the_row_of_the_policy_chosen_is_starred(capsys):
    rows = [row | {"calibration_error": 0.05, "certain": 0.0} for row in ROWS]
    points = [
        {
            "cost": 1e-6 * (i + 1),
            "error": 0.5 - 0.005 * i,
            "models": ["small"],
            "thresholds": {"small": 0.0},
            "lam": 1.0,
        }
        for i in range(60)  # more than the table has rows for
    ]
    for chosen in points[::13]:
        show_tuning("a log", rows, points, chosen=chosen)
        printed = capsys.readouterr().out
        assert "* is that for your target" in " ".join(printed.split())
        (starred,) = re.findall(r"^ *\* (\S+)", printed, re.MULTILINE)
        assert float(starred) == pytest.approx(1e6 * chosen["cost"])
    show_tuning("a log", rows, points, chosen={"cost": 1.5e-6, "error": 0.4})  # a mixture of two points
    assert "*" not in capsys.readouterr().out


@in_turn("error", [0.0, 0.3])
@in_turn("step", [0.0, 1e-16])
def test_labels_are_not_what_rounding_leaves(error, step):
    points = [{"cost": 1e-5 * i, "error": error + step * i} for i in range(1, 11)]
    labels = re.findall(r"(\S+) %", sketch(points, [], MONEY))
    assert labels
    assert all(len(label) <= 5 and float(label) >= 0 for label in labels)
    alike = [{"cost": 1e-5 + 1e-18 * i, "error": 0.3 - 0.02 * i} for i in range(1, 11)]
    assert "000000" not in sketch(alike, [], MONEY)
