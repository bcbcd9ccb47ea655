"""Figures: what each function puts into the Axes it is given, and all figures of a diagnosis, without pyplot."""

import dataclasses
import io
from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import rcjax
from rcjax import plots
from rcjax._core.batching import part
from rcjax.copulas import OneOf
from rcjax.model.cascade_model import demo_model
from rcjax.model.marginals import Marginal
from rcjax.policy.counted import ERRORS

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


@pytest.fixture(scope="module")
def answers(float64):
    rng = np.random.default_rng(0)
    confidence = rng.beta(3, 1, (N, 2))
    return confidence, rng.random((N, 2)) < confidence


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_marginal_has_bars_a_density_and_its_masses(ax):
    marginal = Marginal(
        *map(jnp.asarray, (0.2, 0.9, 0.1, 0.3)), *map(jnp.asarray, ([0.5, 0.5], [2.0, 3.0], [3.0, 2.0]))
    )
    inner = np.random.default_rng(0).uniform(0.2, 0.9, 120)
    confidence = np.concatenate([inner, np.full(20, 0.2), np.full(60, 0.9)])
    plots.plot_marginal(ax, marginal, confidence, title="small")
    bars, *rest = ax.containers
    assert not rest
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(120 / 200)
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(y, marginal.density(jnp.asarray(x)))
    (masses,) = (other for other in ax.figure.axes if other is not ax)
    assert [bar.get_height() for (bar,) in masses.containers] == [20 / 200, 60 / 200]
    assert [line.get_ydata()[0] for line in masses.lines] == [0.1, 0.3]
    assert (ax.get_title(), ax.get_xlabel(), masses.get_ylabel()) == ("small", "calibrated confidence", "point mass")
    assert sorted(legend(ax)) == ["fitted", "log (hatched: point masses)"]


def test_ranks_are_points(ax):
    u, v = np.random.default_rng(0).random((2, 3000))
    plots.plot_ranks(ax, u, v, names=("small", "large"), title="log")
    points = np.asarray(ax.collections[0].get_offsets())
    np.testing.assert_array_equal(points, np.stack([u, v], axis=1)[: len(points)])
    assert 1000 <= len(points) < 3000
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("small", "large", "log")
    assert ax.get_xlim() == ax.get_ylim() == (0, 1)


def test_reliability_has_ten_points_with_intervals(ax, answers):
    confidence, correct = (each[:, 0] for each in answers)
    plots.plot_reliability(ax, confidence, correct, title="small")
    diagonal, line, *_ = ax.lines
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    x, y = line.get_data()
    assert len(x) == 10
    assert y.mean() == pytest.approx(correct.mean())
    (intervals,) = ax.containers[0].lines[2]
    for place, value, segment in zip(x, y, intervals.get_segments(), strict=True):
        (left, low), (right, high) = segment
        assert left == right == pytest.approx(place)
        assert 0 <= low <= value + 1e-12
        assert value - 1e-12 <= high <= 1 + 1e-12


def test_accuracy_above_has_a_line_for_each_model(ax, answers):
    plots.plot_accuracy_above(ax, *answers, ["small", "large"], fewest=30)
    assert legend(ax) == ["small", "large"]
    for line, right in zip(ax.lines, answers[1].T, strict=True):
        share, accuracy = line.get_data()
        assert share.min() >= 30 / N
        assert share.max() == 1
        assert accuracy[np.argmax(share)] == pytest.approx(right.mean())
    assert ax.get_xlim() == (1, 0)
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 2


def frontier():
    cost, error = np.array([3e-5, 1e-5, 2e-5]), np.array([0.1, 0.3, 0.2])
    return {
        "predicted_cost": cost,
        "predicted_error": error,
        "error_band": np.full(3, 0.05),
        "cost": 1.1 * cost,
        "error": error + 0.01,
    }


def test_a_frontier_has_a_line_a_band_points_and_the_models(ax):
    plots.plot_error_cost(ax, frontier(), {"small": (1e-5, 0.35), "large": (4e-5, 0.12)})
    predicted, seen = ax.lines
    np.testing.assert_allclose(predicted.get_xydata(), [[10, 0.3], [20, 0.2], [30, 0.1]])
    np.testing.assert_allclose(seen.get_xydata(), [[11, 0.31], [22, 0.21], [33, 0.11]])
    assert seen.get_marker() == "o"
    assert legend(ax) == ["90 % band", "promised", "seen, held out"]
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
    plots.plot_error_cost(ax, frontier(), near | {"llama3.1-405b": (4e-5, 0.12)})
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not overlap(boxes)
    assert all(ax.get_window_extent().contains(*corner) for box in boxes for corner in box.corners())
    at_one_offset = [
        box.translated(-x, -y) for box, (x, y) in zip(boxes, [text.xyann for text in ax.texts], strict=True)
    ]
    assert overlap(at_one_offset)  # so they would, at the same side of their spots


NAMES = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")


@pytest.fixture(scope="module")
def model(float64):
    """Three models of the embedded one, with a family of its own for each pair."""
    demo = demo_model()
    rows, places = np.array(demo.index(NAMES)), np.array([1, 2, 7])
    members = part(demo.copulas, places), rcjax.copulas.Frank.from_tau(jnp.full(3, 0.3))
    return dataclasses.replace(
        demo,
        **{name: part(getattr(demo, name), rows) for name in ("calibrators", "marginals", "cost")},
        copulas=OneOf(jnp.array([0, 0, 1]), members),
        models=NAMES,
    )


@pytest.fixture(scope="module")
def diagnosed(model):
    """(what the figures need of a diagnosis, the log)."""
    log = rcjax.sample_log(N, seed=0).select(NAMES)
    confidence, correct = np.asarray(model.calibrate(log.logprob)), np.asarray(log.correct)
    promise = frontier() | {"predicted_error": frontier()["predicted_error"] + 0.01}
    figures = {"confidence": confidence, "correct": correct}
    return SimpleNamespace(**figures, frontier=frontier(), promise=promise, counted=ERRORS), log


@pytest.mark.thorough
def test_all_figures_of_a_diagnosis(model, diagnosed):
    before = plt.get_fignums()
    figures = plots.diagnosis_figures(*diagnosed[:1], model, diagnosed[1])
    axes = {name: len(figure.axes) for name, figure in figures.items()}
    single = {"accuracy_above": 1, "frontier": 1}
    assert axes == {"reliability": 3, "marginals": 6, "copulas": 4} | single
    assert [ax.get_title() for ax in figures["reliability"].axes] == list(NAMES)
    titles = [ax.get_title() for ax in figures["copulas"].axes]
    assert [title.split(",")[0] for title in titles] == ["log", "Gumbel", "log", "Frank"]
    for ax in figures["copulas"].axes:
        points = np.asarray(ax.collections[0].get_offsets())
        assert points.shape == (N, 2)
        for ranks in points.T:
            np.testing.assert_allclose(np.sort(ranks), (np.arange(N) + 0.5) / N)
    for figure in figures.values():
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=40)
        assert content.getvalue().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_a_frontier_has_its_band_and_the_single_models(ax):
    log = rcjax.sample_log(N, seed=0)
    log = log.select(log.models[:2])
    frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[100.0, 1000.0, 3000.0])
    plots.plot_frontier(ax, frontier)
    assert legend(ax) == ["estimated from the log"]
    x, _ = ax.lines[0].get_data()
    order = np.argsort(np.asarray(frontier.cost), kind="stable")
    np.testing.assert_allclose(np.sort(x), 1e6 * np.asarray(frontier.cost)[order])
    bands = rcjax.tuning.bootstrap(frontier, log, replicates=20, refit=False)
    drawn = Figure().add_subplot()
    plots.plot_frontier(drawn, frontier.with_bands(bands), {"small": (1e-5, 0.4), "large": (2e-5, 0.3)})
    assert legend(drawn) == ["90 % interval", "estimated from the log"]
    assert [text.get_text() for text in drawn.texts] == ["small", "large"]
    low, high = drawn.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
    assert low == pytest.approx(float(bands.error.min()))
    assert high == pytest.approx(float(bands.error.max()))
