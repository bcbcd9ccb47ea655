"""The report of a log that tells seconds: a colour on the curve, figures at each point, money apart from waiting."""

import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from timed_logs import timed_log

import rcjax
from rcjax.plots import plot_frontier
from rcjax.tuning.bills import with_seconds

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]


@pytest.fixture(scope="module")
def report(float64):
    log, test = timed_log(300, seed=1).split(0.6, seed=0)
    return rcjax.make_report(log, test=test, replicates=20, error_cost=0.01, second_cost=0.0005)


def test_every_point_tells_its_seconds_and_its_money(report):
    page = report.to_html()
    points = json.loads(re.search(r'id="points">(.*?)</script>', page, re.DOTALL)[1])
    told = report.frontier.seconds
    assert len(points) == len(told.mean)
    for point, mean, tail in zip(points, told.mean, told.p95, strict=True):
        assert float(point["seconds"]) == pytest.approx(mean, rel=5e-3)
        assert f"{float(f'{tail:.2g}'):g}" in point["tail"]
        assert point["policy"]["expected"]["seconds_p95"] == pytest.approx(tail)
    assert "Costs count $0.0005 for each second of waiting" in page
    assert "The colour of a dot says within how many seconds 95 % of the queries are answered" in page
    assert "seconds within which 95 % are answered" in page  # beside the colours
    assert re.search(r"and took [\d.]+ seconds on average, [\d.]+ or less for 95 % of them", points[0]["tried"])
    assert report.to_json()["frontier"][0]["seconds_p95"] == pytest.approx(float(told.p95[0]))


def test_a_frontier_without_seconds_has_no_colours():
    log = timed_log(120)
    frontier = rcjax.solve_frontier(rcjax.fit(log), lam=np.geomspace(30, 30_000, 12))
    axes = []
    for one in (frontier, with_seconds(frontier, log)):
        figure = Figure()
        plot_frontier(figure.add_subplot(), one)
        axes.append(figure.axes)
    assert [len(own) for own in axes] == [1, 2]
    dots = axes[1][0].collections[-1]
    np.testing.assert_allclose(sorted(dots.get_array()), sorted(with_seconds(frontier, log).seconds.p95))
