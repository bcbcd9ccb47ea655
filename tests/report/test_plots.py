"""Figures: what each function puts into the Axes it is given, without pyplot."""

import dataclasses
import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.submodels import of_models
from matplotlib.figure import Figure

import rcjax
from rcjax._base.figures import Money
from rcjax.report import plots
from rcjax.solving.frontier.points import Bands
from rcjax.tuning.diagnostics.diagnosis import Promise

pytestmark = pytest.mark.usefixtures("float64")

N = 200


@pytest.fixture
def ax():
    """Axes of a figure that pyplot does not know; drawing into them must not change that."""
    before = plt.get_fignums()
    figure = Figure()
    yield figure.add_subplot()
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    assert plt.get_fignums() == before


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_reliability_has_ten_points_with_intervals(ax):
    rng = np.random.default_rng(0)
    confidence = rng.beta(3, 1, N)
    correct = rng.random(N) < confidence
    plots.plot_reliability(ax, confidence, correct, title="small")
    diagonal, line, *_ = ax.lines
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    x, y = line.get_data()
    assert len(x) == 10
    assert y.mean() == pytest.approx(correct.mean())
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 1), (0, 1))
    (intervals,) = ax.containers[0].lines[2]
    for place, value, segment in zip(x, y, intervals.get_segments(), strict=True):
        (left, low), (right, high) = segment
        assert left == right == pytest.approx(place)
        assert 0 <= low <= value + 1e-12
        assert value - 1e-12 <= high <= 1 + 1e-12


def promise():
    cost, error = np.array([3e-5, 1e-5, 2e-5]), np.array([0.1, 0.3, 0.2])
    band = np.full(3, 0.05)
    return Promise("labels", np.ones(3), error, cost, error + 0.01, 1.1 * cost, error_band=band, cost_band=band)


def test_a_frontier_has_a_line_a_band_points_and_the_models(ax):
    plots.plot_error_cost(ax, promise(), {"small": (1e-5, 0.35), "large": (4e-5, 0.12)})
    predicted, seen = ax.lines
    np.testing.assert_allclose(predicted.get_xydata(), [[10, 0.3], [20, 0.2], [30, 0.1]])
    np.testing.assert_allclose(seen.get_xydata(), [[11, 0.31], [22, 0.21], [33, 0.11]])
    assert seen.get_marker() == "o"
    assert ax.get_xlabel() == "cost, dollars per million queries"
    monthly = Figure().add_subplot()
    plots.plot_error_cost(monthly, promise(), money=Money(2e6, "month"))
    assert (monthly.get_xlabel(), monthly.lines[0].get_xdata()[0]) == ("cost, dollars a month", pytest.approx(20))
    assert legend(ax) == ["90 % band", "expected", "seen, held out"]
    assert [(text.get_text(), text.xy) for text in ax.texts] == [
        ("small", (pytest.approx(10), 0.35)),
        ("large", (pytest.approx(40), 0.12)),
    ]
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(0.35)
    assert ax.get_ylim()[0] == 0


def overlap(boxes):
    return any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_names_of_models_near_each_other_do_not_overprint(ax):
    near = {"llama3.2-1b": (1e-5, 0.35), "llama3.2-3b": (1.02e-5, 0.352), "llama3.1-8b": (1.1e-5, 0.345)}
    plots.plot_error_cost(ax, promise(), near | {"llama3.1-405b": (4e-5, 0.12)})
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not overlap(boxes)
    assert all(ax.get_window_extent().contains(*corner) for box in boxes for corner in box.corners())
    at_one_offset = [
        box.translated(-x, -y) for box, (x, y) in zip(boxes, [text.xyann for text in ax.texts], strict=True)
    ]
    assert overlap(at_one_offset)  # so they would, at the same side of their spots


def test_the_name_of_the_dearest_model_is_above_its_spot_and_clear_of_the_curve(ax):
    plots.plot_error_cost(ax, promise(), {"small": (1e-5, 0.35), "llama3.1-405b": (4e-5, 0.12)})
    ax.figure.draw_without_rendering()
    box = ax.texts[-1].get_window_extent()
    spot, curve = (ax.transData.transform(point) for point in ((40, 0.12), (36, 0.12)))
    assert box.x0 < spot[0] < box.x1 + 1
    assert box.y0 > curve[1] + 7  # points, about the radius of the page's marker


def test_a_frontier_has_its_band_and_the_single_models(ax):
    model = of_models(rcjax.demo_model(), np.arange(2))
    frontier = rcjax.solve_frontier(model, lam=[100.0, 1000.0, 3000.0])
    plots.plot_frontier(ax, frontier)
    assert legend(ax) == ["estimated from the log"]
    x, _ = ax.lines[0].get_data()
    order = np.argsort(np.asarray(frontier.cost), kind="stable")
    np.testing.assert_allclose(np.sort(x), 1e6 * np.asarray(frontier.cost)[order])
    error, cost = (np.outer(values, [0.9, 1.1]) for values in (frontier.error, frontier.cost))
    bands = Bands(error, cost, level=0.9, replicates=20)
    drawn = Figure().add_subplot()
    plots.plot_frontier(drawn, dataclasses.replace(frontier, bands=bands), {"small": (1e-5, 0.4), "large": (2e-5, 0.3)})
    assert legend(drawn) == ["90 % interval", "estimated from the log"]
    assert [text.get_text() for text in drawn.texts] == ["small", "large"]
    low, high = drawn.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
    assert low == pytest.approx(float(bands.error.min()))
    assert high == pytest.approx(float(bands.error.max()))
