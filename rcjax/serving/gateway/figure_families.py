"""The families of figures that a gateway counts: their names, what they say, their labels; and prometheus-client.

It is imported when the first figures are made, not before: where several workers count into one folder, it has to find
that folder in the environment.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rcjax._base.extras import how_to_install

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["SINCE", "Children", "label", "load_prometheus", "make_families"]


SINCE = "rcjax_since_taken_up"  # not shown: what the figures of `rcjax.serving.gateway.since` are made of


_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus-client takes the folder from


_REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


_CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


_COUNTERS = {
    "requests": (
        "Requests that ended, by the model whose answer was kept or that abstained",
        ("policy", "model", "status"),
    ),
    "request_cost": ("Money for the calls that led to answers", ("policy",)),
    "asked": ("Requests that a model was asked about", ("policy", "model")),
    "deferrals": (
        "Requests that a model was asked about and did not answer: it was not sure enough, or failed",
        ("policy", "model"),
    ),
    "compared": (
        "Answers that were compared with an earlier model's, and whether they were equal",
        ("policy", "model", "equal"),
    ),
    "refused_requests": ("Requests that the gateway answered with an error of its own", ("reason", "status")),
    "log_lines": (
        "Calls for the log: written; lost, as the disk was full, say; cut, as an answer was too long for a line",
        ("outcome",),
    ),
    "worker_starts": ("Workers that began to take requests, those that took another's place included", ()),
    "reloads": ("New policy files, counted by every worker", ("policy", "outcome")),
    "call_cost": (
        "Money for calls of upstream models; shadow: those that shadow queries add",
        ("model", "shadow"),
    ),
    "call_tokens": ("Tokens of calls, as far as upstream servers tell them", ("model", "direction")),
    "call_attempts": ("Requests sent upstream, each retry one", ("model",)),
    "call_errors": ("Calls that brought no answer, or no confidence in it", ("model", "kind")),
}


_HISTOGRAMS = {
    "request_seconds": ("How long whole requests took", ("policy",), _REQUEST_SECONDS),
    "call_seconds": (
        "How long calls of upstream models took, retries included",
        ("model",),
        (0.025, *_REQUEST_SECONDS),
    ),
    "confidence": ("Calibrated confidence in the answers of a model", ("policy", "model"), _CONFIDENCES),
}


_GAUGES = {
    "requests_in_flight": ("Requests that are being answered", (), "livesum"),
    "policy_taken_up_timestamp_seconds": ("When the policy that is served was taken up", ("policy",), "max"),
    SINCE.removeprefix("rcjax_"): (
        "Counts behind the figures beside expected ones",
        ("policy", "slot", "what", "model"),
        "livesum",
    ),
}


class Children(dict[Any, Any]):
    """The members of a family by the values of their labels, a text or a tuple of texts, made when first asked for."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def __missing__(self, key: str | tuple[str, ...]) -> Any:
        values = (key,) if isinstance(key, str) else key
        child = self[key] = self._family.labels(*map(label, values))
        return child


def label(text: str) -> str:
    """A text as a label has it: what UTF-8 does not know becomes a question mark.

    >>> label("médium"), label("half \\ud800")
    ('médium', 'half ?')
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def make_families(prometheus: ModuleType, registry: CollectorRegistry) -> dict[str, Any]:
    """Every family by its name without `rcjax_`: `Children`, or the figure itself where there are no labels."""
    families: dict[str, Any] = {}
    for name, (text, labels) in _COUNTERS.items():
        families[name] = prometheus.Counter(f"rcjax_{name}", text, labels, registry=registry)
    for name, (text, labels, buckets) in _HISTOGRAMS.items():
        families[name] = prometheus.Histogram(f"rcjax_{name}", text, labels, registry=registry, buckets=buckets)
    for name, (text, labels, mode) in _GAUGES.items():
        families[name] = prometheus.Gauge(f"rcjax_{name}", text, labels, registry=registry, multiprocess_mode=mode)
    return {name: Children(family) if family._labelnames else family for name, family in families.items()}


def load_prometheus(folder: str | None) -> ModuleType:
    """prometheus_client, counting into files of a folder, or into memory where that is None.

    Raises ValueError where the folder is none, or prometheus_client was imported for another; ImportError where it is
    not installed.
    """
    if folder is not None:
        if not os.path.isdir(folder):
            raise ValueError(f"{folder}: the workers count into files there, but there is no such folder: create it")
        if "prometheus_client" not in sys.modules:
            os.environ[_FOLDER] = folder
    try:
        import prometheus_client
        from prometheus_client import values
    except ImportError:
        raise ImportError(f"the gateway's figures need prometheus-client: {how_to_install('serve')}") from None
    into_files = values.ValueClass is not values.MutexValue
    if into_files != (folder is not None) or (into_files and os.environ.get(_FOLDER) != folder):
        where = os.environ.get(_FOLDER) if into_files else "memory"
        raise ValueError(
            f"prometheus_client counts into {where} in this process, not into {folder or 'memory'}: set or unset "
            f"{_FOLDER} before it is first imported"
        )
    return prometheus_client
