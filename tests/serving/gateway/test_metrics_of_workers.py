"""Figures that watch for drift, and those of several workers that are added up."""

import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from textwrap import dedent

import pytest
from gateway_samples import MODELS, ask, make_policy
from metric_pages import figures, samples

import rcjax
from rcjax.serving.gateway.metrics import Metrics

POLICY = make_policy()


# Drift


def alarms(metrics):
    """The models of which the drift, by the rule in the documentation, is more than chance."""
    drift, by_chance = figures(metrics, "drift"), figures(metrics, "drift_by_chance")
    return {model for (model, name), moved in drift.items() if moved > max(by_chance[model, name], 0.05)}


def service(seed, moved=1.0, requests=400):
    """A service of its own whose policy was tuned on 360 queries of its own."""
    policy, rng = make_policy(seed=seed), random.Random(1000 + seed)
    metrics = Metrics(None)
    metrics.take_up("support", policy, "abc")
    for _ in range(requests):
        metrics.ended("support", "abc", ask(policy, rng, moved), 0.5)
    return metrics


@pytest.mark.thorough
def test_services_in_which_nothing_has_changed_rarely_alarm():
    counts = Counter(model for seed in range(200) for model in alarms(service(seed)))
    # 5 % of 200, and what a binomial variable exceeds once in a thousand times.
    most = 10 + NormalDist().inv_cdf(0.999) * math.sqrt(200 * 0.05 * 0.95)
    assert all(counts[model] <= most for model in MODELS)


@pytest.mark.parametrize("moved", [0.5, 1.6])
def test_a_service_whose_confidences_moved_alarms(moved):
    assert all("small" in alarms(service(seed, moved)) for seed in range(10))


# Several workers

WORKER = """
    import random, sys
    sys.path.insert(0, sys.argv[2])
    from gateway_samples import ask, make_call, make_policy
    from rcjax.serving.gateway.metrics import Metrics

    folder, seed = sys.argv[1], int(sys.argv[3])
    metrics, policy, rng = Metrics(folder), make_policy(), random.Random(seed)
    metrics.take_up("support", policy, "abc")
    if seed == 0:  # this one was late
        metrics.take_up("support", make_policy(seed=9), "old")
        metrics.ended("support", "old", ask(policy, rng), 0.5)
        metrics.take_up("support", policy, "abc")
    for _ in range(100):
        result = ask(policy, rng)
        metrics.ended("support", "abc", result, 0.5)
        for call in result.calls:
            metrics.called(call)
    metrics.in_flight.inc()
    print(sys.argv[3], __import__("os").getpid(), flush=True)
    sys.stdin.read()  # it lives until its input ends
    """

READER = """
    import sys
    sys.path.insert(0, sys.argv[2])
    from gateway_samples import make_policy
    from rcjax.serving.gateway.metrics import Metrics

    metrics = Metrics(sys.argv[1])
    metrics.take_up("support", make_policy(), "abc")
    for pid in sys.argv[3:]:
        Metrics.forget_worker(sys.argv[1], int(pid))
    sys.stdout.buffer.write(metrics.text()[0])
    """


def start(program, *arguments):
    tests, root = str(Path(__file__).parents[2]), str(Path(rcjax.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n" + dedent(program)]
    places = [str(arguments[0]), tests, *map(str, arguments[1:])]
    return subprocess.Popen([*command, *places], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def read(folder, *pids):
    page, _ = start(READER, folder, *pids).communicate()
    return samples(page)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of three workers, alive, and when one of them has ended and is forgotten; and their results."""
    folder = tmp_path_factory.mktemp("workers")
    workers = [start(WORKER, folder, seed) for seed in range(3)]
    pids = [int(worker.stdout.readline().split()[1]) for worker in workers]
    alive = read(folder)
    for worker in workers:
        worker.stdin.close()
        assert worker.wait() == 0
    forgotten = read(folder, pids[2])
    return alive, forgotten


def drawn(*seeds):
    """What the workers with these seeds did for the policy that is served in the end."""
    results = []
    for seed in seeds:
        rng = random.Random(seed)
        if seed == 0:
            ask(POLICY, rng)
        results += [ask(POLICY, rng) for _ in range(100)]
    return results


def labelled(name, **labels):
    return name, *sorted(labels.items())


def test_several_workers_are_added_up(pages):
    page, _ = pages
    results = drawn(0, 1, 2)
    assert page[labelled("policy_requests", policy="support")] == 300
    assert page[labelled("request_seconds_count", policy="support")] == 301
    assert page["requests_in_flight",] == 3
    calls = Counter(call.model for result in results for call in result.calls)
    answers = Counter(result.model for result in results if result.status == "answered")
    decided = len(results)
    for model in MODELS:
        assert page[labelled("call_attempts_total", model=model)] == calls[model]
        assert page[labelled("drift_queries", model=model, policy="support")] == calls[model]
        share = page[labelled("answered_ratio", model=model, policy="support")]
        assert share == pytest.approx(answers[model] / decided)
    cost = math.fsum(result.cost for result in results) / 300
    assert page[labelled("cost_per_request", policy="support")] == pytest.approx(cost)


def test_several_workers_drift_as_one_does(pages):
    page, _ = pages
    alone = Metrics(None)
    alone.take_up("support", POLICY, "abc")
    for result in drawn(0, 1, 2):
        alone.ended("support", "abc", result, 0.5)
    for name in ("drift", "drift_by_chance"):
        for (model, policy), value in figures(alone, name).items():
            assert page[labelled(name, model=model, policy=policy)] == pytest.approx(value, rel=1e-12)


def test_a_worker_that_ended_is_forgotten_but_for_its_counts(pages):
    _, page = pages
    assert page["requests_in_flight",] == 2
    assert page[labelled("policy_requests", policy="support")] == 200
    assert page[labelled("request_seconds_count", policy="support")] == 301
    answers = Counter(result.model for result in drawn(0, 1) if result.status == "answered")
    share = page[labelled("answered_ratio", model="small", policy="support")]
    assert share == pytest.approx(answers["small"] / 200)


# Where it counts


def test_it_counts_where_it_was_told_or_says_why_not(tmp_path):
    with pytest.raises(ValueError, match="PROMETHEUS_MULTIPROC_DIR before it is first imported") as told:
        Metrics(str(tmp_path))  # it was imported for one process, above
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="no such folder: create it"):
        Metrics(str(tmp_path / "absent"))


def test_neither_numpy_nor_jax_is_imported_and_prometheus_late():
    program = """
        from rcjax.serving.gateway.metrics import Metrics
        late = "prometheus_client" not in sys.modules
        Metrics(None).text()
        print(late, [name for name in ("numpy", "jax", "polars") if name in sys.modules])
    """
    page, _ = start(program, "").communicate()
    assert page.decode().strip() == "True []"
