"""Errors that answer requests of clients.

They have the form and the status codes of OpenAI's interface, whose clients retry on 408, 409, 429 and from 500 on.
They quote no headers, no prompts, and no text of a server.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rcjax.serving.billing import BudgetSpentError, SpendingUnknownError
from rcjax.serving.failures import NO_CREDIT, Failure, in_short


@dataclass(eq=False)
class ApiError(Exception):
    """An error that answers a request."""

    status: int
    """HTTP status."""
    message: str
    """One line for people."""
    code: str | None = None
    """One word for programs."""
    param: str | None = None
    """The field with the fault."""
    retry_after: float | None = None
    """Seconds of back-off before a retry."""
    no_retry: bool = False
    """Whether clients should not retry, whatever the status."""
    counted_as: str | None = None
    """The reason in the figures; None if it is the code."""

    def __str__(self) -> str:
        return self.message

    @property
    def reason(self) -> str:
        """The reason in the figures, from the gateway's own short list, never an endpoint's word."""
        return self.counted_as or self.code or "error"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the error: the back-off, and whether to retry, which OpenAI's clients obey."""
        retry_after = {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}
        return retry_after | ({"x-should-retry": "false"} if self.no_retry else {})

    def to_json(self) -> dict[str, Any]:
        """Return the body of the error.

        >>> [ApiError(status, "no").to_json()["error"]["type"] for status in (404, 429, 503)]
        ['invalid_request_error', 'rate_limit_error', 'server_error']
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind  # as compatible servers; OpenAI: requests or tokens
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid_field(field: str, problem: str, code: str = "invalid_value") -> ApiError:
    """Make the error of a field; `problem` is a predicate, such as "must be a number"."""
    return ApiError(400, f"{field} {problem}", code, field)


def money_error(problem: BudgetSpentError | SpendingUnknownError) -> ApiError:
    """Make the error of a request that the money of its policy or client does not cover, or may not cover."""
    if isinstance(problem, SpendingUnknownError):
        return ApiError(503, str(problem), "spending_unknown", retry_after=1.0)
    reason = "budget_spent" if problem.client is None else "client_limit"
    if problem.end is None:
        return ApiError(429, str(problem), "too_many_requests", retry_after=1.0, counted_as=reason)
    return ApiError(429, str(problem), reason, retry_after=problem.end - time.time(), no_retry=True)


#: An endpoint's statuses for a fault of the gateway: its keys, credit or model names.
_GATEWAY_FAULTS = (401, 402, 403, 404)


def upstream_error(failure: Failure | None, errors: Sequence[str]) -> ApiError:
    """Make the error of a request that no model answered, with the endpoint's code if there is one.

    A fault of the gateway's settings has a code of the gateway: a client would take an endpoint's `invalid_api_key` for
    a fault of the client's own key.

    Args:
        failure: the last failure; None if no model could answer in time.
        errors: model and error of each failed call, in words.
    """
    problem = f"no model answered: {'; '.join(errors)}"
    if failure is None:
        return ApiError(504, "no model could answer in time", "deadline_exceeded")
    if failure.status == 402 or failure.code in NO_CREDIT:
        return ApiError(502, problem, "upstream_out_of_credit", no_retry=True)
    if failure.status in _GATEWAY_FAULTS:
        return ApiError(502, problem, "upstream_failed", no_retry=True)
    status, reason, retry_after = 502, "upstream_failed", failure.retry_after
    if failure.is_refusal:
        status, reason, retry_after = failure.status or 400, "upstream_refused", None
    elif failure.status == 429:
        status, reason, retry_after = 429, "upstream_rate_limited", failure.retry_after or 1.0
    elif failure.timed_out:
        status, reason, retry_after = 504, "upstream_timed_out", None
    return ApiError(status, problem, failure.code or reason, retry_after=retry_after, counted_as=reason)


def fault_within(problem: Exception, query: str) -> ApiError:
    """Log an internal fault without its message, which may quote a prompt, and return the client's error."""
    traceback = problem if os.environ.get("RCJAX_TRACEBACK") else None  # it shows the message, too
    logger = logging.getLogger("rcjax.serving")
    logger.error("query %s failed within rcjax: %s", query, in_short(problem), exc_info=traceback)
    return ApiError(500, "rcjax itself failed: its standard error says where", "internal_error")
