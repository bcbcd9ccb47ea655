"""The page that Prometheus reads: what was counted, by all workers, and what is worked out of it when it is read.

What is seen beside what is expected, and drift, are made of sums over all workers: no worker alone could tell them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rcjax.serving.gateway.drift import distance, distance_by_chance
from rcjax.serving.gateway.figure_families import SINCE, label
from rcjax.serving.gateway.since import Key, Served

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["Page", "expose"]


_DERIVED = {
    "policy_info": ("The policy that is served, by the hash of its file", ("policy", "digest")),
    "policy_requests": ("Requests through the policy since it was taken up", ("policy",)),
    "answered_ratio": ("Share of the requests that a model answered, since then", ("policy", "model")),
    "expected_answered_ratio": ("Share of the requests that a model is expected to answer", ("policy", "model")),
    "abstained_ratio": ("Share of the requests that got no answer as the policy abstained, since then", ("policy",)),
    "expected_abstained_ratio": ("Share of the requests that are expected to get no answer", ("policy",)),
    "cost_per_request": ("Money per request, since then", ("policy",)),
    "expected_cost_per_request": ("Money that a request is expected to cost", ("policy",)),
    "seconds_per_request": ("Mean seconds of the calls along a request's path, since then", ("policy",)),
    "expected_seconds_per_request": ("Mean seconds along the path that a request is expected to take", ("policy",)),
    "expected_seconds_p95": ("Seconds within which 95 % of the requests are expected to be answered", ("policy",)),
    "drift": (
        "How far raw confidences since then are from those that the policy was tuned on, from 0, the same, to 0.58",
        ("policy", "model"),
    ),
    "drift_by_chance": ("The drift that chance alone exceeds in 5 % of cases", ("policy", "model")),
    "drift_queries": ("Raw confidences that the drift is measured on", ("policy", "model")),
}


Row = tuple[str, tuple[str, ...], float]  # a figure's name without `rcjax_`, its labels, its value


@dataclass(frozen=True)
class Page:
    """Everything at one moment, as prometheus-client's encoders take it: something that can be collected."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        """The families of figures."""
        return self.families


def expose(registry: CollectorRegistry, folder: str | None, served: Iterable[Served], accept: str) -> tuple[bytes, str]:
    """(the page, its content type): in the text format, or OpenMetrics where a client accepts that.

    Args:
        registry: what this worker counts with.
        folder: where all workers count; None where this is the only one.
        served: the policies.
        accept: the header of the request.
    """
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.multiprocess import MultiProcessCollector

    source = registry if folder is None else MultiProcessCollector(None, folder)
    families, sums = _parted(source.collect())
    rows = [row for policy in served for row in _rows(policy, sums)]
    encode, content_type = choose_encoder(accept)
    return encode(Page((*families, *_gauges(rows)))), content_type


def _parted(families: Iterable[Metric]) -> tuple[list[Metric], dict[Key, float]]:
    """(what is shown as it was counted, the counts since policies were taken up)."""
    shown: list[Metric] = []
    sums: dict[Key, float] = {}
    for family in families:
        if family.name == SINCE:
            for sample in family.samples:
                sums[tuple(sample.labels[name] for name in ("policy", "slot", "what", "model"))] = sample.value  # type: ignore[index]
        else:
            # When a counter was created is of no use where there are several, and a series more for each.
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            shown.append(family)
    return shown, sums


def _rows(policy: Served, sums: Mapping[Key, float]) -> Iterator[Row]:
    name, since, expected = (policy.name,), policy.since(sums), policy.expected
    yield "policy_info", (*name, label(policy.digest)), 1.0
    yield "policy_requests", name, since.requests
    decided = sum(since.answered.values()) + since.abstained
    if decided:
        yield from (("answered_ratio", (*name, label(m)), n / decided) for m, n in since.answered.items())
        yield "abstained_ratio", name, since.abstained / decided
    if since.requests:
        yield "cost_per_request", name, since.cost / since.requests
        yield "seconds_per_request", name, since.seconds / since.requests
    if expected.answered is not None and expected.abstained is not None:
        yield from (("expected_answered_ratio", (*name, label(m)), x) for m, x in expected.answered.items())
        yield "expected_abstained_ratio", name, expected.abstained
    if expected.cost is not None:
        yield "expected_cost_per_request", name, expected.cost
    for figure, seconds in zip(("seconds_per_request", "seconds_p95"), policy.expected_seconds, strict=True):
        if seconds is not None:
            yield f"expected_{figure}", name, seconds
    for model, counts in since.logprobs.items():
        yield from _drift((*name, label(model)), policy.bins[model], counts)


def _drift(labels: tuple[str, ...], bins: Any, counts: list[float]) -> Iterator[Row]:
    total = sum(counts)
    yield "drift_queries", labels, total
    moved = distance(bins, counts)
    if moved is not None:
        yield "drift", labels, moved
        yield "drift_by_chance", labels, distance_by_chance(total, bins.size)


def _gauges(rows: Iterable[Row]) -> list[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    gauges = {
        name: GaugeMetricFamily(f"rcjax_{name}", text, labels=labels) for name, (text, labels) in _DERIVED.items()
    }
    for name, labels, value in rows:
        gauges[name].add_metric(labels, value)
    return [gauge for gauge in gauges.values() if gauge.samples]
