"""Points that no price of an error leads to are marked as such in the table of a frontier."""

from rcjax.cli import tables

ROWS = [
    {"model": name, "accuracy": right, "cost": cost, "calibration_error": 0.02, "certain": 0.0}
    for name, right, cost in (("small", 0.6, 2e-5), ("large", 0.8, 2e-4))
]


def point(cost, error, lam, **more):
    return {"lam": lam, "cost": cost, "error": error, "models": ["large"], "thresholds": {"large": 0.0}, **more}


def test_prices_of_points_in_gaps_have_a_mark_that_is_explained(capsys):
    corner, gap = point(2e-4, 0.2, 500.0, supported=True), point(1e-4, 0.29, 1250.0, supported=False)
    tables.show_tuning("A log.", ROWS, [corner, gap], None)
    out = capsys.readouterr().out
    prices = [line.split()[-1] for line in out.splitlines() if line.split()[2:4] == ["%", "large"]]
    assert prices == ["~$0.80", "$2.0"]
    assert "~ No price leads there, only a budget or a limit on the error" in out
    old = [{name: value for name, value in one.items() if name != "supported"} for one in (corner, gap)]
    for points in ([corner], old):  # no gap, or a file that does not tell
        tables.show_tuning("A log.", ROWS, points, None)
        assert "~" not in capsys.readouterr().out
