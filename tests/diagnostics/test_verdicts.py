"""From figures to verdicts and advice: of which policies a check is, its limits, and what is said of each."""

import numpy as np
from misses import in_turn

from rcjax.diagnostics import LIMITS, verdicts
from rcjax.diagnostics.verdicts import SCOPES

# -- whom a check affects


def test_every_check_has_a_scope():
    assert set(SCOPES) == set(LIMITS)


# -- verdicts


@in_turn("name", LIMITS)
def test_a_figure_is_judged_by_its_limits(name):
    limits = LIMITS[name]
    sign = 1 if limits.bad > limits.doubtful else -1
    beyond, before = limits.bad + sign * 1e-6, limits.doubtful - sign * 1e-6
    between = (limits.doubtful + limits.bad) / 2
    for p_value, expected in (
        (None, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (0.01, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (0.05, ("doubtful", "fine", "fine", "fine", "fine")),
        (np.nan, ("doubtful", "fine", "fine", "fine", "fine")),
    ):
        figures = beyond, limits.bad, between, limits.doubtful, before
        assert tuple(verdicts.judge(name, figure, p_value) for figure in figures) == expected
        assert verdicts.judge(name, np.nan, p_value) == "doubtful"


def assert_advice(checks, *expected):
    """The verdicts are those expected, and each that is not fine says in one sentence what to do."""
    checks = list(checks)
    assert [check.verdict for check in checks] == list(expected)
    for check in checks:
        if check.verdict == "fine":
            assert check.advice == ""
            continue
        assert len(check.advice) > 30
        assert "\n" not in check.advice
        assert not any(f"{end} " in check.advice for end in ".!?")
        assert "nan" not in check.advice.split()
        assert all(name in check.advice for name in check.subject.split(" | "))
    return [check.advice for check in checks]


def test_advice_on_size():
    assert_advice(verdicts.judge_size(300), "fine")
    assert_advice(verdicts.judge_size(150), "doubtful")
    assert "30 queries" in assert_advice(verdicts.judge_size(30), "bad")[0]


FINE = {
    "model": "small",
    "accuracy": 0.7,
    "expected_accuracy": 0.7,
    "accuracy_p": 1.0,
    "held_out_error": 0.02,
    "by_chance": 0.04,
    "p_value": 0.5,
    "separation": 0.8,
    "slope": 1.0,
    "slope_p": 1e-9,
    "certain": 0.0,
    "states": False,
}


@in_turn(
    ("change", "place", "verdict", "said"),
    [
        ({"accuracy": 0.5, "accuracy_p": 1e-6}, 0, "bad", "harder"),
        ({"accuracy": 0.75, "accuracy_p": 0.01}, 0, "doubtful", "easier"),
        ({"held_out_error": 0.2, "p_value": 0.001}, 1, "bad", "drop the model"),
        ({"held_out_error": 0.07, "p_value": 0.001}, 1, "doubtful", "4.0 %"),
        ({"held_out_error": 0.12, "p_value": 0.3}, 1, "doubtful", "so few queries"),
        ({"separation": 0.6}, 2, "doubtful", "60 %"),
        ({"separation": 0.52}, 2, "bad", "a coin"),
        ({"separation": 0.7, "slope_p": 0.4}, 2, "bad", "gains little"),
        ({"separation": 0.3, "slope": -1.0}, 2, "bad", "mixed up"),
        ({"separation": np.nan, "slope": 0.0, "slope_p": np.nan}, 2, "bad", "better than another"),
        ({"certain": 0.6}, 3, "doubtful", "60 %"),
        ({"certain": 0.95}, 3, "bad", "log more digits"),
        ({"certain": 0.95, "states": True}, 3, "bad", "another signal, such as votes"),
    ],
)
def test_advice_on_calibration(change, place, verdict, said):
    expected = ["fine"] * 4
    expected[place] = verdict
    assert said in assert_advice(verdicts.judge_calibration([FINE | change]), *expected)[place]


def frontier(error=0.0, cost=0.0, band=0.001):
    seen = {"error": np.full(4, 0.2 + error), "cost": np.full(4, 2.0 + cost)}
    bands = {"error_band": np.full(4, band), "cost_band": np.full(4, band)}
    return seen | bands | {"predicted_error": np.full(4, 0.2), "predicted_cost": np.full(4, 2.0)}


def test_advice_on_predictions():
    assert_advice(verdicts.judge_promise(frontier(), 150), "fine", "fine")
    advice = assert_advice(verdicts.judge_promise(frontier(0.05, -0.4), 150), "bad", "bad")
    assert "the error of policies tuned in this way is 5.0 points higher than" in advice[0]
    assert "the cost of policies tuned in this way is 20.0 % lower than" in advice[1]
    assert_advice(verdicts.judge_promise(frontier(-0.02, 0.2), 150), "doubtful", "doubtful")
    assert_advice(verdicts.judge_promise(frontier(0.05, 0.4, band=1), 150), "doubtful", "doubtful")
    (advice, _) = assert_advice(verdicts.judge_promise(frontier(0.05), 150, harder=True), "bad", "fine")
    assert "do worse here" in advice


def test_what_chance_can_make_of_a_promise_is_said():
    advice = assert_advice(verdicts.judge_promise(frontier(0.05, band=1), 150), "doubtful", "fine")
    assert "chance alone can make that with 150 queries" in advice[0]


def test_costs_of_nothing_are_predicted_right():
    free = frontier()
    for name in ("cost", "predicted_cost"):
        free[name] = np.zeros_like(free[name])
    checks = {check.name: check for check in verdicts.judge_promise(free, 9)}
    assert checks["predicted cost"].figure == 0
