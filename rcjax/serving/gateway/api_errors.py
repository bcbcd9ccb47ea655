"""What goes wrong with a request, in the form and with the status codes of OpenAI's interface. Standard library only.

Clients try again on 408, 409, 429 and from 500 on; nothing of headers, prompts or what a server said is quoted.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from rcjax.serving.completions import Failure

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}

_CLIENTS = (400, 413, 422)  # statuses of an endpoint that are the request's own fault

_GATEWAYS = (401, 402, 403, 404)  # that are the gateway's: its keys, its credit, its names of models


class ApiError(Exception):
    """A request that gets an error for an answer.

    Args:
        status: of HTTP.
        message: one line for people.
        code: one word for programs.
        param: the field that it is about.
        wait: seconds after which to try again.
        lasting: trying again will not help, whatever the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        wait: float | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.wait = status, message, code, param, wait
        self.lasting = lasting

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it: when to try again, and whether to (which clients of OpenAI read)."""
        if self.lasting:
            return {"x-should-retry": "false"}
        return {} if self.wait is None else {"retry-after": str(max(1, math.ceil(self.wait)))}

    def to_json(self) -> dict[str, Any]:
        """The body of the answer.

        >>> ApiError(404, "no such model", "model_not_found", "model").to_json()["error"]["type"]
        'not_found_error'
        """
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def fault_within(problem: Exception) -> ApiError:
    """Log a fault of rcjax's own, whose message may quote what was asked; what the client is told of it."""
    traceback = problem if os.environ.get("RCJAX_TRACEBACK") else None  # its lines hold no values, but a message may
    where = logging.getLogger("rcjax.serving")
    where.error("a request failed within rcjax: %s", type(problem).__name__, exc_info=traceback)
    return ApiError(500, "rcjax itself failed: its log says where", "internal_error")


def upstream_error(failure: Failure | None, problem: str) -> ApiError:
    """The error of a request that no model answered.

    Args:
        failure: what went wrong with the last model; None if none was asked, as there was no time left.
        problem: the same for people.

    >>> upstream_error(Failure(status=401), "large: HTTP 401").status  # the key of the gateway, not of the client
    502
    >>> upstream_error(Failure(status=400, code="context_length_exceeded"), "large: HTTP 400").status
    400
    """
    if failure is None:
        return ApiError(504, "no model could answer in time", "deadline_exceeded")
    if failure.status in _CLIENTS:
        return ApiError(failure.status or 400, problem, failure.code or "upstream_refused")
    if failure.status == 429:
        return ApiError(429, problem, failure.code or "upstream_rate_limited", wait=failure.wait or 1.0)
    if failure.passing and failure.status is None and "timed out" in problem:
        return ApiError(504, problem, "upstream_timed_out")
    lasting = failure.status in _GATEWAYS
    return ApiError(502, problem, failure.code or "upstream_failed", wait=failure.wait, lasting=lasting)
