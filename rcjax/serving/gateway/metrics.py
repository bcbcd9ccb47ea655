"""Metrics: figures that are counted as requests and calls end, and the page that Prometheus reads.

Labels come from the operator's settings and from short lists here, so that clients and endpoints cannot add to them.
The label `policy` is the name in the request: of a policy or of a model. Several workers count into files of one folder
(prometheus-client's multiprocess mode), and each worker can give the figures of all. prometheus-client is imported
late, because it looks for the folder when it is imported.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from rcjax.serving.billing import SharedBill
from rcjax.serving.call_log import LINE_OUTCOMES, Call, Result

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable of Prometheus's client for the folder in which several workers count together."""

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

_CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

_COUNTERS = {
    "requests": ("Requests that ended, by the model whose answer was kept", ("policy", "model", "status")),
    "not_judged_requests": (
        "Requests whose answers no policy judges, by the first reason; the largest or the cheapest model answers",
        ("policy", "reason"),
    ),
    "request_cost": ("Money for requests, abandoned requests included", ("policy",)),
    "client_requests": ("Requests of a client with a name, by the status of the answer", ("client", "status")),
    "client_cost": ("Money for the requests of a client with a name", ("client",)),
    "asked": ("Requests that a model was asked about", ("policy", "model")),
    "deferrals": ("Requests that a model was asked about and did not answer", ("policy", "model")),
    "shadow_queries": (
        "Queries drawn as shadow queries, by outcome: asked, or skipped for lack of a slot, memory or money",
        ("policy", "outcome"),
    ),
    "refused_requests": ("Requests answered with an error, by the gateway's code", ("reason", "status")),
    "log_lines": ("Lines of the call log: written, or lost (to a full disk, for example)", ("outcome",)),
    "worker_starts": ("Workers that began to take requests", ()),
    "reloads": (
        "Reloads of files, counted by each worker: taken up (each changed policy) or refused (all policies)",
        ("policy", "outcome"),
    ),
    "call_cost": ("Money for calls of models; shadow: whether only a shadow query made the calls", ("model", "shadow")),
    "call_tokens": ("Tokens of calls", ("model", "direction")),
    "call_attempts": ("Requests sent upstream, retries included", ("model",)),
    "call_errors": ("Calls without an answer, or without a confidence", ("model", "kind")),
}

_HISTOGRAMS = {
    "request_seconds": ("Seconds of whole requests", ("policy",), _SECONDS),
    "call_seconds": ("Seconds of calls of upstream models, retries included", ("model",), _SECONDS),
    "confidence": ("Calibrated confidence in the answers of a model", ("policy", "model"), _CONFIDENCES),
}

#: (text, labels, mode) of each gauge; the mode says how the figures of several workers are combined.
_GAUGES: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "requests_in_flight": ("Requests that have come and are not yet answered", (), "livesum"),
    "ladder_position": ("Position of a policy on its ladder; 0: the cheapest rung", ("policy",), "livemostrecent"),
    "bill_balance": ("Money left of the budgets of all queries so far; below 0: overspent", ("policy",), "livesum"),
    "ledger_up": ("Whether the ledger of the replicas answers: 1, or 0", (), "livemin"),
    "ledger_waiting": ("Payments that the ledger has not confirmed yet", (), "livesum"),
    "period_left": ("Dollars left in the current period; 0 or less: spent", ("policy",), "livemostrecent"),
}


class Metrics:
    """The figures of one worker, and the page of all workers.

    Args:
        shares_balance: whether a ledger gives all workers the same balance of a policy.

    Example:
        >>> metrics = Metrics()
        >>> metrics.count_refusal("invalid_api_key", 401)
        >>> page, content_type = metrics.render()
        >>> [line for line in page.decode().splitlines() if line.startswith("rcjax_refused")]
        ['rcjax_refused_requests_total{reason="invalid_api_key",status="401"} 1.0']
    """

    def __init__(self, *, shares_balance: bool = False) -> None:
        import prometheus_client as prometheus

        # The time of a counter's creation would be one more series each, and means nothing with several workers.
        prometheus.disable_created_metrics()
        self._registry = prometheus.CollectorRegistry()
        counter, histogram, gauge = prometheus.Counter, prometheus.Histogram, prometheus.Gauge
        figures: list[tuple[Any, ...]] = [(counter, name, *about, {}) for name, about in _COUNTERS.items()]
        figures += [(histogram, name, *about, {"buckets": last}) for name, (*about, last) in _HISTOGRAMS.items()]
        modes = {"bill_balance": "livemostrecent"} if shares_balance else {}
        figures += [
            (gauge, name, *about, {"multiprocess_mode": modes.get(name, mode)})
            for name, (*about, mode) in _GAUGES.items()
            if shares_balance or not name.startswith("ledger")
        ]
        self._figures = {
            name: make(f"rcjax_{name}", text, labels, registry=self._registry, **more)
            for make, name, text, labels, more in figures
        }
        self._figure = cache(self._find_figure)  # the client needs several microseconds to look labels up

    def count_start(self, *, logging: bool) -> None:
        """Count the start of this worker; with a call log, its lines are counted from 0 on."""
        self._figures["worker_starts"].inc()
        for outcome in LINE_OUTCOMES if logging else ():
            self._figure("log_lines", outcome).inc(0)

    def track_request(self) -> AbstractContextManager[None]:
        """Count a request in flight, from its first line to the end of its answer, within a `with` block."""
        return self._figures["requests_in_flight"].track_inprogress()

    def count_line(self, outcome: str) -> None:
        """Count a line of the call log: "written" or "lost"."""
        self._figure("log_lines", outcome).inc()

    def count_reload(self, name: str, outcome: str | None) -> None:
        """Count new files for a policy.

        The outcome is "taken up" if the policy changes, "refused" if any file is broken, None for the first files.
        """
        # Both begin at 0: Prometheus sees no increase in a count that begins at 1.
        for label in ("taken up", "refused"):
            self._figure("reloads", name, label).inc(label == outcome)

    def count_request(
        self, name: str, result: Result, seconds: float, billing: SharedBill | None = None, reason: str | None = None
    ) -> None:
        """Count a request that has ended.

        Args:
            name: the policy or model that the client named.
            result: the result of the query.
            seconds: seconds that the whole request took.
            billing: the bill of the policy of this name, if there is one.
            reason: the reason why the answer was not judged, from the gateway's own list.
        """
        model = result.model or ""
        if reason is not None:
            self._figure("not_judged_requests", name, reason).inc()
        self._figure("requests", name, model, result.status).inc()
        self._figure("request_seconds", name).observe(seconds)
        for call in result.calls if result.query.handling.not_judged is None else ():
            self._figure("asked", name, call.model).inc()
            if call.model != result.model:
                self._figure("deferrals", name, call.model).inc()
            if call.confidence is not None:
                self._figure("confidence", name, call.model).observe(call.confidence)
        if billing is not None:
            self.set_bill(name, billing)

    def set_bill(self, name: str, billing: SharedBill) -> None:
        """Set the position and the money of a policy that follows its bill."""
        if billing.bill is not None:
            self._figure("ladder_position", name).set(billing.position)
            figure, money = (
                ("bill_balance", billing.balance) if billing.money_left is None else ("period_left", billing.money_left)
            )
            self._figure(figure, name).set(money)

    def set_ledger(self, *, is_up: bool, waiting: int) -> None:
        """Set the state of the ledger: whether it answers, and the number of payments that it has not confirmed."""
        self._figures["ledger_up"].set(is_up)
        self._figures["ledger_waiting"].set(waiting)

    def count_cost(self, name: str, cost: float) -> None:
        """Count money for requests that named a policy or model."""
        self._figure("request_cost", name).inc(cost)

    def count_response(self, client: str | None, status: int) -> None:
        """Count an answered request of a client with a name."""
        if client is not None:
            self._figure("client_requests", client, str(status)).inc()

    def count_call(self, call: Call, policy: str | None) -> None:
        """Count a call that has ended, for a request or for a shadow query, and the policy that made the call."""
        model = call.model
        if policy is not None and not call.query.handling.is_beyond_policy:
            self.count_cost(policy, call.cost)
        client = call.query.client
        if client is not None and not call.query.handling.is_beyond_policy:
            self._figure("client_cost", client).inc(call.cost)
        self._figure("call_seconds", model).observe(call.seconds)
        self._figure("call_cost", model, "true" if call.query.handling.is_beyond_policy else "false").inc(call.cost)
        self._figure("call_attempts", model).inc(call.attempts)
        for direction, tokens in (("input", call.input_tokens), ("output", call.output_tokens)):
            if tokens:
                self._figure("call_tokens", model, direction).inc(tokens)
        if call.failure_kind is not None:
            self._figure("call_errors", model, call.failure_kind).inc()

    def count_shadow(self, policy: str, outcome: str) -> None:
        """Count a query drawn as a shadow query: its outcome is "asked", "no slot", "no memory" or "no money"."""
        self._figure("shadow_queries", policy, outcome).inc()

    def count_refusal(self, reason: str, status: int) -> None:
        """Count a request that the gateway itself refused, for a reason of its own short list."""
        self._figure("refused_requests", reason, str(status)).inc()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return (the page of all workers, its content type): OpenMetrics if the header `Accept` asks for it.

        This takes milliseconds, with several workers tens of milliseconds: call it in a thread.
        """
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = self._registry
        if METRICS_FOLDER in os.environ:
            _forget_ended(os.environ[METRICS_FOLDER])
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _find_figure(self, figure: str, *labels: str) -> Any:
        """Return the figure for these values of its labels, in which lone surrogates become question marks."""
        plain = (text.encode("utf-8", "replace").decode() for text in labels)
        return self._figures[figure].labels(*plain)


def _forget_ended(folder: str) -> None:
    """Drop the gauges of workers that have ended; their counts stay."""
    from prometheus_client.multiprocess import mark_process_dead

    pids = {int(file.stem.rpartition("_")[2]) for file in Path(folder).glob("gauge_live*.db")}
    for pid in pids if sys.platform != "win32" else ():  # there, the signal would end the process
        try:
            os.kill(pid, 0)
        except OSError:  # there is no such process, or one of another user has got its id
            with suppress(FileNotFoundError):  # another worker removed the files first
                mark_process_dead(pid, folder)
