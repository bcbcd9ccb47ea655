import re

import pytest

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


def test_the_legend_names_everything_that_is_drawn():
    text = sketch(POINTS, ROWS, MONEY, POINTS[0])
    for words in ("$ per million queries", "· the frontier", "◆ your target", "A small", "B large"):
        assert words in text
    assert "your target" not in sketch(POINTS, ROWS, MONEY)


def test_lines_fit_a_terminal_of_80():
    many = [{"model": f"provider/model-{i}", "cost": 1e-6 * (i + 1), "accuracy": 0.5} for i in range(30)]
    assert max(len(line) for line in sketch(POINTS, many, MONEY).split("\n")) <= 80


@pytest.mark.parametrize("far", [{"cost": 1e-5, "accuracy": 0.2}, {"cost": 3e-4, "accuracy": 0.9}])
def test_a_model_far_from_the_frontier_leaves_it_its_room(far):
    drawing, plain = (sketch(POINTS, rows, MONEY) for rows in ([*ROWS, far | {"model": "odd"}], ROWS))
    assert "C odd (far off)" in drawing
    assert place(drawing, "A") == place(plain, "A")
    assert place(drawing, "B") == place(plain, "B")


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
