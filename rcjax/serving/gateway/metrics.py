"""What operators see: what is counted while requests end, and the page that Prometheus reads it from.

    metrics = Metrics(folder=None)
    metrics.take_up("support", policy, digest)
    metrics.ended("support", digest, result, seconds)
    page, content_type = metrics.text(accept)

Several workers count into files of one folder, prometheus-client's multiprocess mode, and any of them gives the page of
all. The label `policy` is the name that clients ask for: that of a policy or, where a request is passed on, of a model.
Labels come from what the operator configured and from short lists here, so that their number is bounded whatever
clients and upstream servers send. Needs `pip install 'rcjax[serve]'`; neither JAX nor numpy is imported.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from rcjax.policy.policy import AnyPolicy
from rcjax.serving.call_log import LOGGED
from rcjax.serving.gateway.exposition import expose
from rcjax.serving.gateway.figure_families import SINCE, load_prometheus, make_families
from rcjax.serving.gateway.since import Served

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from rcjax.serving.call_log import Call
    from rcjax.serving.cascade import Result

__all__ = ["Metrics", "error_kind"]


_MOST_REASONS = 40  # different reasons of refusals that are told apart


_OTHER = "other"


_STATUSES = frozenset(map(int, HTTPStatus)) | {499}  # 499: the client left


_NO_ERRORS = ("not judged", "passed on")  # why there is no confidence


_KINDS = {
    "cancelled": "cancelled",
    "timed out": "timed out",
    "no connection": "no connection",
    "malformed answer": "malformed",
    "the answer breaks off": "malformed",
    "an answer without text": "no text",
    "an error in place of an answer": "error reply",
    "the client failed": "client failed",
    "the server tells no tokens": "no tokens",
    "the check timed out": "check timed out",
    "the check gave nothing": "check gave nothing",
    "the check ": "check failed",
}


def error_kind(call: Call) -> str | None:
    """The kind of a call's error, one of a short list; None where it has none.

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
    kinds = [kind for start, kind in _KINDS.items() if error.startswith(start)]
    # A reply that is there and still has an error has one in its confidence.
    return kinds[0] if kinds else "signal" if call.text is not None else _OTHER


class Metrics:
    """The figures of one worker, which it counts, and those of all workers, which it shows.

    Args:
        folder: where the workers of a service count: a folder that is empty when the service starts; None where there
            is one worker. It is put into the environment where prometheus_client is not imported yet, and must be there
            already where it is.

    Raises ValueError where there is no such folder, or prometheus_client was imported for another, or for none;
    ImportError where it is not installed.

    Example:
        >>> metrics = Metrics(None)
        >>> metrics.refused("no key", 401)
        >>> page, content_type = metrics.text()
        >>> [line for line in page.decode().splitlines() if line.startswith("rcjax_refused")]
        ['rcjax_refused_requests_total{reason="no key",status="401"} 1.0']
    """

    def __init__(self, folder: str | None) -> None:
        prometheus = load_prometheus(folder)
        self._folder = folder
        self._registry = prometheus.CollectorRegistry()
        families = make_families(prometheus, self._registry)
        self.in_flight: Gauge = families["requests_in_flight"]
        """Requests that are being answered now: `inc()` and `dec()`, or `with in_flight.track_inprogress():`."""
        self._requests, self._request_seconds = families["requests"], families["request_seconds"]
        self._request_cost, self._refused = families["request_cost"], families["refused_requests"]
        self._asked, self._deferrals = families["asked"], families["deferrals"]
        self._compared = families["compared"]
        self._confidences, self._reloads = families["confidence"], families["reloads"]
        self._call_seconds, self._call_cost = families["call_seconds"], families["call_cost"]
        self._attempts, self._tokens = families["call_attempts"], families["call_tokens"]
        self._errors, self._taken_up = families["call_errors"], families["policy_taken_up_timestamp_seconds"]
        self._log_lines, self._starts = families["log_lines"], families["worker_starts"]
        self._since = families[SINCE.removeprefix("rcjax_")]
        self._served: dict[str, Served] = {}  # by name
        self._reasons: set[str] = set()

    def began(self, *, logging: bool) -> None:
        """This worker takes requests; with a call log, whose lines are counted from 0 on."""
        self._starts.inc()
        for outcome in LOGGED if logging else ():
            self._log_lines[outcome].inc(0)

    def logged(self, outcome: str) -> None:
        """A line of the call log was "written", "lost" or "cut"."""
        self._log_lines[outcome].inc()

    def take_up(self, name: str, policy: AnyPolicy, digest: str) -> None:
        """A policy is served under a name from now on, the first or another; what is seen of it starts from nothing.

        Args:
            name: what clients ask for.
            policy: the policy or mixture.
            digest: the hash of its file.

        Raises ValueError, and changes nothing, where the queries that the policy carries are damaged.
        """
        before = self._served.get(name)
        if before is not None and before.digest == digest:
            return
        served = Served(name, policy, digest, self._since)
        served.clear()
        self._served[name] = served
        self._taken_up[name].set(time.time())
        # From 0 on both, as Prometheus sees no increase in a count that begins at 1.
        self._reloads[name, "refused"].inc(0)
        self._reloads[name, "taken up"].inc(0 if before is None else 1)

    def refuse(self, name: str) -> None:
        """A new file for a name was broken, and was refused; the policy before goes on."""
        self._reloads[name, "refused"].inc()

    def ended(self, name: str, digest: str, result: Result, seconds: float) -> None:
        """A request went through a policy to its end.

        Args:
            name: what the client asked for.
            digest: the hash of the policy that answered it: the one before, perhaps, where a new one was taken up.
            result: what became of it.
            seconds: how long the whole request took.
        """
        self._requests[name, result.model or "", result.status].inc()
        self._request_seconds[name].observe(seconds)
        self._request_cost[name].inc(result.cost)
        for call in result.calls:
            at = name, call.model
            self._asked[at].inc()
            if call.model != result.model:
                self._deferrals[at].inc()
            if call.confidence is not None:
                self._confidences[at].observe(call.confidence)
        served = self._served.get(name)
        if served is not None and served.digest == digest:
            served.count(result)
            for model, equal in served.compared(result):
                self._compared[name, model, "true" if equal else "false"].inc()

    def passed(self, name: str, model: str, status: str, seconds: float) -> None:
        """A request that no policy judged went to a model.

        Args:
            name: what the client asked for, a policy or the model.
            model: who answered.
            status: "not judged" where it asked for a policy, "passed on" where for the model, "failed".
            seconds: how long the whole request took.
        """
        self._requests[name, model, status].inc()
        self._request_seconds[name].observe(seconds)

    def called(self, call: Call) -> None:
        """A call of an upstream model ended, one of a request or one that a shadow query adds."""
        model = call.model
        self._call_seconds[model].observe(call.seconds)
        self._call_cost[model, "true" if call.added else "false"].inc(call.cost)
        self._attempts[model].inc(call.attempts)
        if call.input_tokens:
            self._tokens[model, "input"].inc(call.input_tokens)
        if call.output_tokens:
            self._tokens[model, "output"].inc(call.output_tokens)
        kind = error_kind(call)
        if kind is not None:
            self._errors[model, kind].inc()

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
        self._refused[reason, _status(status)].inc()

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the page of all workers, its content type): OpenMetrics where the header `Accept` asks for it.

        It takes milliseconds, tens where several workers serve several policies: call it in a thread.
        """
        return expose(self._registry, self._folder, tuple(self._served.values()), accept)

    @staticmethod
    def forget_worker(folder: str, pid: int) -> None:
        """A worker has ended: what it has in flight is gone, and what it saw of policies that it served.

        Its counters stay in the page. Call it from a process that lives on, once per worker that ended.
        """
        load_prometheus(folder)
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(pid, folder)


def _status(status: int) -> str:
    return str(status) if status in _STATUSES else _OTHER
