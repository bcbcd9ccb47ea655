"""Metrics of one worker and of several workers, whose labels stay few."""

import os
import subprocess
import sys

import pytest
from helpers.gateway_samples import make_call, make_result
from prometheus_client.parser import text_string_to_metric_families

from rcjax.serving.gateway.metrics import METRICS_FOLDER, Metrics


def samples(page):
    """{(name without rcjax_, label values by name): value} of a page."""
    return {
        (sample.name.removeprefix("rcjax_"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def figures(metrics, name):
    """{label values in alphabetical order of the labels: value} of one figure; a value alone where it has one label."""
    return {
        values[0] if len(values) == 1 else values: value
        for (figure, *labels), value in samples(metrics.render()[0]).items()
        if figure == name
        for values in [tuple(value for _, value in labels)]
    }


@pytest.fixture
def metrics():
    return Metrics()


def test_requests_are_counted_by_policy_model_and_status(metrics):
    small, large = make_call(), make_call("large")
    for status, calls in [
        ("answered", [small]),
        ("answered", [small, large]),
        ("answered", [small, large]),
        ("best so far", [make_call("large", error="HTTP 500"), small]),
        ("abstained", [small]),
        ("failed", [make_call(text=None, logprob=None, confidence=None, error="timed out")]),
    ]:
        metrics.count_request("support", make_result(status, calls), 0.5)
    metrics.count_request("support", make_result("not judged", [large]), 0.5)
    metrics.count_request("large", make_result("by name", [large]), 0.5)
    assert figures(metrics, "requests_total") == {
        ("small", "support", "answered"): 1,
        ("large", "support", "answered"): 2,
        ("small", "support", "best so far"): 1,
        ("small", "support", "abstained"): 1,
        ("", "support", "failed"): 1,
        ("large", "support", "not judged"): 1,
        ("large", "large", "by name"): 1,
    }
    assert figures(metrics, "asked_total") == {("small", "support"): 6, ("large", "support"): 3}
    assert figures(metrics, "deferrals_total") == {("small", "support"): 3, ("large", "support"): 1}
    assert figures(metrics, "request_seconds_count") == {"support": 7, "large": 1}
    assert figures(metrics, "request_seconds_sum") == {"support": 3.5, "large": 0.5}
    assert figures(metrics, "confidence_count") == {("small", "support"): 5, ("large", "support"): 3}


def test_names_are_escaped_whatever_they_hold(metrics):
    metrics.count_request('a "b" \\ c\nd é \ud800', make_result(), 0.5)
    assert metrics.render("application/openmetrics-text")[0].isascii() is False
    assert figures(metrics, "request_seconds_count") == {'a "b" \\ c\nd é ?': 1}


# Several workers


PROGRAM = """
import os, sys
from types import SimpleNamespace
from helpers.gateway_samples import make_call, make_result
from rcjax.serving.gateway.metrics import Metrics

other = os.fork()
metrics = Metrics()
metrics.count_request("support", make_result(calls=[make_call(), make_call("large")]), 0.5)
metrics.set_bill("support", SimpleNamespace(position=1.5, bill=object(), balance=2.0, money_left=None))
if other:
    os.waitpid(other, 0)
    sys.stdout.buffer.write(metrics.render()[0])
"""


@pytest.mark.thorough
def test_several_workers_are_added_up(tmp_path):
    environment = {**os.environ, METRICS_FOLDER: str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True)
    page = samples(done.stdout)  # the other has ended: its counts stay
    assert page["bill_balance", ("policy", "support")] == 2.0  # and where it stood does not
    assert page["requests_total", ("model", "large"), ("policy", "support"), ("status", "answered")] == 2
    assert page["request_seconds_sum", ("policy", "support")] == 1.0
    assert page["confidence_bucket", ("le", "0.8"), ("model", "small"), ("policy", "support")] == 2


def test_the_id_of_an_ended_worker_may_belong_to_another_user(tmp_path, monkeypatch, metrics):
    """The page was then an error for ever."""
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    ended = tmp_path / "gauge_livesum_4242.db"
    ended.write_bytes(b"")

    def kill(pid, signal):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", kill)
    assert metrics.render()[0] == b""
    assert not ended.exists()
