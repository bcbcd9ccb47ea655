"""The report of a log that tells seconds: figures at each point, and what costs count."""

import json
import re

import pytest
from timed_logs import timed_log

import rcjax

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.thorough]


def test_every_point_tells_its_seconds():
    log, test = timed_log(300, seed=1).split(0.6, seed=0)
    report = rcjax.make_report(log, test=test, replicates=20, error_cost=0.01, second_cost=0.0005)
    page = report.to_html()
    points = json.loads(re.search(r'id="points">(.*?)</script>', page, re.DOTALL)[1])
    told = report.frontier.seconds
    assert len(points) == len(told.mean)
    for point, mean, tail in zip(points, told.mean, told.p95, strict=True):
        assert float(point["seconds"]) == pytest.approx(mean, rel=5e-3)
        assert f"{float(f'{tail:.3g}'):g}" in point["tail"]
        assert point["policy"]["expected"]["seconds_p95"] == pytest.approx(tail)
    assert "Costs count $0.0005 for each second of waiting" in page
    assert re.search(r"and took [\d.]+ seconds on average", points[0]["tried"])
    assert report.to_json()["frontier"][0]["seconds_p95"] == pytest.approx(float(told.p95[0]))
