"""What operators' machines see: figures that are counted while requests end, and Prometheus's page of them.

Several workers count into files of one folder, prometheus-client's multiprocess mode, and any of them gives Prometheus
the figures of all. The label `policy` is the name that clients ask for: that of a policy or, where a request is passed
on, of a model. Labels come from what the operator configured and from short lists here, so that their number is bounded
whatever clients and upstream servers send. prometheus-client finds the folder when it is imported, so that happens late
here.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from contextlib import AbstractContextManager, suppress
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from rcjax.serving.billing import Billing
from rcjax.serving.call_log import LOGGED, Call
from rcjax.serving.cascade import Result
from rcjax.serving.gateway.catalog import FOLDER, ServedPolicy
from rcjax.serving.gateway.shifts import Shifts

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

_CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

_COUNTERS = {
    "requests": ("Requests that ended, by the model whose answer was kept", ("policy", "model", "status")),
    "unjudged_requests": (
        "Requests that the largest model answered unjudged, by the first reason",
        ("policy", "reason"),
    ),
    "request_cost": ("Money for requests, those of clients that left included", ("policy",)),
    "client_requests": ("Requests of a client with a name, by the status of the answer", ("client", "status")),
    "client_cost": ("Money for the requests of a client with a name", ("client",)),
    "asked": ("Requests that a model was asked about", ("policy", "model")),
    "deferrals": ("Requests that a model was asked about and did not answer", ("policy", "model")),
    "refused_requests": ("Requests that the gateway answered with an error of its own", ("reason", "status")),
    "log_lines": ("Calls for the log: written; lost, as the disk was full, say", ("outcome",)),
    "worker_starts": ("Workers that began to take requests", ()),
    "reloads": ("New policy files, counted by every worker", ("policy", "outcome")),
    "call_cost": ("Money for calls of models; shadow: those that shadow queries add", ("model", "shadow")),
    "call_tokens": ("Tokens of calls, as far as upstream servers tell them", ("model", "direction")),
    "call_attempts": ("Requests sent upstream, each retry one", ("model",)),
    "call_errors": ("Calls that brought no answer, or no confidence in it", ("model", "kind")),
}

_HISTOGRAMS = {
    "request_seconds": ("How long whole requests took", ("policy",), _SECONDS),
    "call_seconds": ("How long calls of upstream models took, retries included", ("model",), _SECONDS),
    "confidence": ("Calibrated confidence in the answers of a model", ("policy", "model"), _CONFIDENCES),
}

#: The last of each is how the figures of several workers become one.
_GAUGES: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "requests_in_flight": ("Requests that are worked on", (), "livesum"),
    "ladder_position": ("Where on its ladder a policy stands; 0: the cheapest rung", ("policy",), "livemostrecent"),
    "bill_balance": ("Money left of the budgets of queries so far; below 0: paid too much", ("policy",), "livesum"),
    "confidence_shift": (
        "How far confidences of the model asked first have moved, this week beside eight before (Kolmogorov-Smirnov)",
        ("policy", "model"),
        "livemostrecent",
    ),
    "ledger_up": ("Whether the ledger of the replicas answers: 1, or 0", (), "livemin"),
    "ledger_waiting": ("Payments that the ledger is not told of yet", (), "livesum"),
    "period_left": ("Money left of that for this period; 0 or below: all is spent", ("policy",), "livemostrecent"),
}

_REMEMBERED = 1000  # requests that the page of the service tells of

_TOLD_EVERY = 60.0  # seconds between two times that shifts are told

_MOST_REASONS = 40  # different reasons of refusals that are told apart

_OTHER = "other"

_STATUSES = frozenset(map(int, HTTPStatus)) | {499}  # 499: the client left

_NO_ERRORS = ("not judged", "passed on")  # why there is no confidence

#: How errors of calls begin, which may go on with what a server said; the first that fits is the kind.
_KINDS = (
    *("cancelled", "timed out", "no connection", "malformed answer", "the answer breaks off"),
    *("an answer without text", "an error in place of an answer", "the client failed"),
    *("the check timed out", "the check gave nothing", "the check"),
)


def error_kind(call: Call) -> str | None:
    """The kind of a call's error, one of a short list; None if it has none.

    The error itself may quote a reply: it is for the log, not for a label.

    >>> from types import SimpleNamespace as Call
    >>> error_kind(Call(text=None, error="HTTP 429 (rate_limit_exceeded)"))
    'HTTP 429'
    >>> error_kind(Call(text="Mars, 110% sure", error="the confidence 110% is above 1"))
    'signal'
    """
    if call.error is None or call.error.startswith(_NO_ERRORS):
        return None
    error = call.error.removeprefix("the second question: ")
    status = re.match(r"HTTP (\d{3})\b", error, re.ASCII)
    if status:
        return f"HTTP {_status(int(status[1]))}"
    # A reply that is there and still has an error has one in its confidence.
    other = "signal" if call.text is not None else _OTHER
    return next((kind for kind in _KINDS if error.startswith(kind)), other)


class Ended(NamedTuple):
    """A request that has ended, as the page of the service tells of it."""

    name: str
    digest: str | None
    """Of the policy of this name; None of a model."""
    time: float
    """When it ended, in seconds since 1970."""
    model: str
    status: str
    cost: float
    tuned: float | None
    """What the rung that it went by was tuned to cost; None if it went by none."""
    reason: str | None = None
    """Why its answer was not judged; None where it was, or the request was for a model."""


class Metrics:
    """The figures that one worker counts, and the page of all workers.

    Args:
        shares_balance: whether a ledger tells each worker the same balance of a policy.

    Example:
        >>> metrics = Metrics()
        >>> metrics.refused("no key", 401)
        >>> page, content_type = metrics.text()
        >>> [line for line in page.decode().splitlines() if line.startswith("rcjax_refused")]
        ['rcjax_refused_requests_total{reason="no key",status="401"} 1.0']
    """

    def __init__(self, *, shares_balance: bool = False) -> None:
        import prometheus_client as prometheus

        # When a counter was created is of no use where there are several workers, and a series more for each.
        prometheus.disable_created_metrics()
        self._registry = prometheus.CollectorRegistry()
        counter, histogram, gauge = prometheus.Counter, prometheus.Histogram, prometheus.Gauge
        figures: list[tuple[Any, ...]] = [(counter, name, *told, {}) for name, told in _COUNTERS.items()]
        figures += [(histogram, name, *told, {"buckets": last}) for name, (*told, last) in _HISTOGRAMS.items()]
        modes = {"bill_balance": "livemostrecent"} if shares_balance else {}
        figures += [
            (gauge, name, *told, {"multiprocess_mode": modes.get(name, last)})
            for name, (*told, last) in _GAUGES.items()
            if shares_balance or not name.startswith("ledger")
        ]
        self._figures = {
            name: make(f"rcjax_{name}", text, labels, registry=self._registry, **more)
            for make, name, text, labels, more in figures
        }
        self._of = cache(self._labelled)  # to look labels up takes the client several microseconds
        self._reasons: set[str] = set()
        self.recent: deque[Ended] = deque(maxlen=_REMEMBERED)
        self.shifts = Shifts()
        self._told = 0.0  # when shifts were told last, in seconds since 1970

    def began(self, *, logging: bool) -> None:
        """This worker takes requests; with a call log, whose lines are counted from 0 on."""
        self._figures["worker_starts"].inc()
        for outcome in LOGGED if logging else ():
            self._of("log_lines", outcome).inc(0)

    def in_flight(self) -> AbstractContextManager[None]:
        """A request is worked on."""
        return self._figures["requests_in_flight"].track_inprogress()

    def logged(self, outcome: str) -> None:
        """A line of the call log was "written" or "lost"."""
        self._of("log_lines", outcome).inc()

    def reloaded(self, name: str, outcome: str | None) -> None:
        """A new file for a policy was "taken up" or "refused"; None for the first."""
        for one in ("taken up", "refused"):  # both from 0 on: in a count that begins at 1 Prometheus sees no increase
            self._of("reloads", name, one).inc(one == outcome)

    def ended(
        self,
        name: str,
        result: Result,
        seconds: float,
        served: ServedPolicy | None = None,
        *,
        judged: bool = True,
        reason: str | None = None,
    ) -> None:
        """A request has ended.

        Args:
            name: what the client asked for, a policy or a model.
            result: what became of it.
            seconds: how long the whole request took.
            served: the policy of this name.
            judged: it went through the policy.
            reason: why it did not, in words of the gateway's.
        """
        model = result.model or ""
        rung = served.policy.rungs[result.rung or 0] if served is not None and judged else None
        if reason is not None:
            self._of("unjudged_requests", name, reason).inc()
        tuned = None if rung is None else rung.expected.get("cost")
        digest = None if served is None else served.digest
        self.recent.append(Ended(name, digest, time.time(), model, result.status, result.cost, tuned, reason))
        self._of("requests", name, model, result.status).inc()
        self._of("request_seconds", name).observe(seconds)
        for call in result.calls if judged else ():
            self._of("asked", name, call.model).inc()
            if call.model != result.model:
                self._of("deferrals", name, call.model).inc()
            if call.confidence is not None:
                self._of("confidence", name, call.model).observe(call.confidence)
        if judged and result.calls:
            self._shifted(name, digest, result.calls[0])
        if served is not None:
            self.followed(name, served.cascade.billing)

    def _shifted(self, name: str, digest: str | None, first: Call) -> None:
        """Count how sure the first model was; every minute, tell how far confidences have moved."""
        now, policy = time.time(), f"{name} {digest}"
        if first.confidence is not None:
            self.shifts.add(policy, first.model, first.confidence, now)
        if now - self._told > _TOLD_EVERY:
            self._told = now
            for shift in self.shifts.of(policy, now):
                self._of("confidence_shift", name, shift.model).set(shift.distance)

    def followed(self, name: str, billing: Billing) -> None:
        """Where a policy that follows its bill stands, after a request."""
        if billing.bill is not None:
            self._of("ladder_position", name).set(billing.position)
            figure, money = ("bill_balance", billing.balance) if billing.left is None else ("period_left", billing.left)
            self._of(figure, name).set(money)

    def ledger(self, *, is_up: bool, waiting: int) -> None:
        """Whether the ledger answers, and how many payments it is not told of yet."""
        self._figures["ledger_up"].set(is_up)
        self._figures["ledger_waiting"].set(waiting)

    def paid(self, name: str, cost: float) -> None:
        """Money was paid for a request for a policy, or for a model."""
        self._of("request_cost", name).inc(cost)

    def served(self, client: str | None, status: int) -> None:
        """A request of a client with a name was answered."""
        if client is not None:
            self._of("client_requests", client, _status(status)).inc()

    def called(self, call: Call, policy: str | None = None) -> None:
        """A call of an upstream model ended, one of a request or one that a shadow query adds.

        Args:
            call: that ended.
            policy: by whose name it was asked.
        """
        model = call.model
        if policy is not None and not call.added:
            self.paid(policy, call.cost)
        if call.client is not None and not call.added:
            self._of("client_cost", call.client).inc(call.cost)
        self._of("call_seconds", model).observe(call.seconds)
        self._of("call_cost", model, "true" if call.added else "false").inc(call.cost)
        self._of("call_attempts", model).inc(call.attempts)
        for direction, tokens in (("input", call.input_tokens), ("output", call.output_tokens)):
            if tokens:
                self._of("call_tokens", model, direction).inc(tokens)
        kind = error_kind(call)
        if kind is not None:
            self._of("call_errors", model, kind).inc()

    def refused(self, reason: str, status: int) -> None:
        """The gateway itself answered a request with an error.

        Args:
            reason: one of a few short texts of the gateway's, such as "no key"; not what a client sent.
            status: of HTTP.
        """
        if reason not in self._reasons:
            if len(self._reasons) >= _MOST_REASONS:
                reason = _OTHER
            self._reasons.add(reason)
        self._of("refused_requests", reason, _status(status)).inc()

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the page of all workers, its content type): OpenMetrics where the header `Accept` asks for it.

        It takes milliseconds, tens where there are several workers: call it in a thread.
        """
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = self._registry
        if FOLDER in os.environ:
            _forget_ended(os.environ[FOLDER])
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _labelled(self, figure: str, *labels: str) -> Any:
        """A figure for these values of its labels; what UTF-8 does not know in them becomes a question mark."""
        plain = (text.encode("utf-8", "replace").decode() for text in labels)
        return self._figures[figure].labels(*plain)


def _forget_ended(folder: str) -> None:
    """Forget where workers stood that have ended; what they counted stays."""
    from prometheus_client.multiprocess import mark_process_dead

    pids = {int(file.stem.rpartition("_")[2]) for file in Path(folder).glob("gauge_live*.db")}
    for pid in pids if sys.platform != "win32" else ():  # where that signal would end a process
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            with suppress(FileNotFoundError):  # another worker was quicker
                mark_process_dead(pid, folder)


def _status(status: int) -> str:
    return str(status) if status in _STATUSES else _OTHER
