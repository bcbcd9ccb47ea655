"""Queries to models, their calls and results, and the log of the calls. Standard library only.

The log has one line of JSON per call of a model, which `rcjax.read_log` reads as it is. Labels come later, by query, as
`labels=` of `read_log`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from types import NoneType
from typing import Any, Literal

from rcjax._base.codec import describe_type, visible
from rcjax._base.figures import count
from rcjax._base.files import LineFile, StandardOutput, require_kind
from rcjax.policy.signals.answers import FORM_OPTIONS, PLAIN_FORM
from rcjax.serving.failures import Failure

#: Fields of a line that it omits if they are empty.
_OPTIONAL = ("segment", "client", "cached_tokens", "cache_write_tokens", "signal_cost")
_OPTIONAL += ("has_no_confidence", "not_judged", "request_settings")

#: Fields of a call that a line lacks, or has under another name.
_NOT_IN_LINE = ("query", "text", "confidence", "failure_kind")

VERSION = 1  # version of the lines of a call log

#: Outcomes of logging a call.
LINE_OUTCOMES = ("written", "lost")

#: Hexadecimal digits of a prompt's hash, by which equal prompts count once. Without a salt, since hashes must match
#: across workers and restarts; a salt in the log would not prevent guessing.
_DIGITS = 16
_DIGEST_OPTIONS = (*FORM_OPTIONS, "functions", "function_call", "n")  # with others, equal messages are another prompt


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a call to a policy's bill."""

    policy: str
    """The name of the policy whose bill pays."""
    step: int = 1
    """The number of the call within its query, from 1 on."""


@dataclass(frozen=True, slots=True)
class Handling:
    """The way in which a service handles a query."""

    position: float | None = None
    """The policy's position on its ladder; None for a policy of one rung."""
    rung: int | None = None
    """The rung that answers the query, 0 the cheapest; None for a policy of one rung."""
    charge: Charge | None = None
    """The charge to a policy's bill; None if no bill pays, as for a shadow call when the budget is per query."""
    not_judged: str | None = None
    """The reason why no policy judges the answer, such as "by name"; None if one does."""
    is_shadow_query: bool = False
    """Whether the query goes to all models."""
    is_beyond_policy: bool = False
    """Whether the policy would not make this call, which only the shadow query needs."""
    needs_confidence: bool = True
    """Whether the policy or the log needs the confidence of the answer."""


_USUAL_HANDLING = Handling()


@dataclass(frozen=True, slots=True)
class Query:
    """A query to the models: the request, and how the service handles it."""

    id: str
    """The query's id."""
    messages: Sequence[Mapping[str, object]] = field(repr=False)
    """The conversation, as in the API."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options of the query's requests. They override the models' options; the signal's options override them."""
    segment: str | None = None
    """The query's segment, for policies with a cascade for each segment; None if unknown."""
    client: str | None = None
    """The client's name; None if clients have no names."""
    request_form: str = PLAIN_FORM
    """The form of the request (`rcjax.policy.signals.answers`)."""
    handling: Handling = _USUAL_HANDLING

    def with_handling(self, **changes: Any) -> Query:
        """Return the query with other values of fields of its handling."""
        return replace(self, handling=replace(self.handling, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model's answer to one query, with the signal's second question and all attempts."""

    query: Query
    model: str
    """The model's name in the policy."""
    upstream_model: str
    """The model's name at the endpoint."""
    text: str | None
    """The text of the reply; None if nothing usable came back."""
    answer: str | None
    """The answer as the signal reads it, such as the letter of a choice."""
    logprob: float | None
    """Natural logarithm of the raw confidence; None if it was not asked for, or could not be read."""
    confidence: float | None
    """Calibrated confidence, by the policy."""
    cost: float
    """Money: tokens times prices, or as the endpoint reports it."""
    signal_cost: float = 0.0
    """Money of the signal's second question, a part of `cost`."""
    input_tokens: int | None
    """Input tokens of all requests; None if the endpoint did not report them."""
    output_tokens: int | None
    """Output tokens of all replies; None if the endpoint did not report them."""
    estimated: bool
    """Whether the cost is an estimate, since tokens were not reported or no price is known."""
    attempts: int
    """Number of requests sent."""
    seconds: float
    """Seconds that the call took, with the back-off between attempts."""
    time: str
    """The end of the call, in UTC (ISO 8601)."""
    error: str | None
    """The reason why there is no answer, or no confidence in it."""
    has_no_confidence: bool = False
    """Whether there is an answer, and `error` is the reason why the signal found no confidence in it."""
    request_settings: str | None = None
    """The model's signal, options and price as JSON (`rcjax.serving.models_file`); None if not recorded."""
    cached_tokens: int = 0
    """Tokens of the input that came from a cache."""
    cache_write_tokens: int = 0
    """Tokens of the input that were put into a cache."""
    failure_kind: str | None = None
    """The kind of the failure, from a short list; None without one."""


Status = Literal["answered", "best so far", "abstained", "failed", "not judged", "by name"]


class CascadeError(RuntimeError):
    """No model answered a query: `result` has the calls, and the message says why each of them failed."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.problem)
        self.result = result


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a query: the answer, its cost and the calls that led to it."""

    query: Query
    status: Status
    """`"answered"`, `"abstained"`, `"failed"`, or `"best so far"` if the largest model failed or the time was up; in a
    gateway also `"not judged"` or `"by name"`."""
    text: str | None
    """The text of the reply that was kept; None without one."""
    answer: str | None
    """The answer as the signal reads it, such as the letter of a choice."""
    model: str | None
    """The model that answered or abstained, by its name in the policy; None if no model answered."""
    confidence: float | None
    """Calibrated confidence of the answer; None if the signal found none."""
    cost: float
    """Money for the calls, in the currency of the prices."""
    calls: tuple[Call, ...]
    """The calls that led to the answer, in order, without those that a shadow query adds."""
    completion: Mapping[str, object] | None = field(default=None, repr=False, compare=False)
    """The completion with the reply, as the endpoint sent it, even if it has no text."""
    usage: Mapping[str, object] | None = field(default=None, repr=False, compare=False)
    """Sum of the calls' tokens, as in the API."""
    failure: Failure | None = field(default=None, repr=False, compare=False)
    """The last failure, if no model answered."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds from the start of the first call to the end of the last; the first two may run in parallel."""
    why_not_asked: str | None = field(default=None, compare=False)
    """The reason why no model was asked: the money does not cover it; None for other queries."""

    @property
    def problem(self) -> str:
        """The failed calls and their errors, in one line; empty without a failure."""
        failed = [call for call in self.calls if call.error]
        listed = "; ".join(f"{call.model}: {call.error} (attempts: {call.attempts})" for call in failed)
        summary = "no model answered" if self.status == "failed" else "some models failed"
        if self.status == "failed" and not failed:
            return visible(f"query {self.query.id}: {self.why_not_asked or 'no model could answer in time'}")
        return visible(f"query {self.query.id}: {summary}: {listed}") if failed else ""


class CallLog:
    """A file of JSON Lines to which each call is appended by one write, so that a kill loses only calls in flight.

    Threads, and processes of one machine, may write to one file. If a kill or a full disk cuts a line off, the next
    call gets a line of its own, and readers skip the unfinished line. If another program, such as logrotate, renames or
    removes the file, the next line goes to a new file. The log has no keys and no headers, and always a hash of each
    prompt, so that equal prompts count once.

    Args:
        path: path of the file; None for standard output.
        answers: whether the log has answers.
        prompts: whether the log has prompts, as JSON in a text.
        replica: name of this replica of a service, for each line.
        observe: called by `write_or_count` with the outcome of each call, one of `LINE_OUTCOMES`.

    Raises ValueError for a file of another kind, OSError if the file cannot be opened. `write` raises OSError if the
    file cannot be written, and ValueError for a number that JSON cannot hold; then nothing is written.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "calls.jsonl")
        >>> query = Query("q1", [{"role": "user", "content": "A or B?"}])
        >>> asked = {"query": query, "model": "small", "upstream_model": "small"}
        >>> answer = {"text": "B", "answer": "B", "logprob": -0.1, "confidence": 0.8}
        >>> cost = {"cost": 1e-5, "input_tokens": 90, "output_tokens": 1, "estimated": False}
        >>> status = {"attempts": 1, "seconds": 0.2, "time": "2026-11-24T10:00:00Z", "error": None}
        >>> with CallLog(path) as log:
        ...     log.write(Call(**asked, **answer, **cost, **status))
        >>> with open(path) as file:
        ...     json.loads(file.read())["logprob"]
        -0.1
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        answers: bool = True,
        prompts: bool = False,
        replica: str | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        if path is not None:
            require_kind(path, "log of a service")
        self.path = None if path is None else os.fspath(path)
        self.answers = answers
        self.prompts = prompts
        self.replica = replica
        self.observe = observe
        self._lost = 0  # calls since the last line that was written
        self._lock = threading.Lock()
        self._lines = StandardOutput() if path is None else LineFile(path)

    def write(self, call: Call) -> None:
        """Append a call, with a hash of its prompt, and the messages if the log keeps prompts.

        The hash covers the messages, and options such as `tools` and `response_format`, which are part of a prompt.
        """
        row = call_row(call if self.answers else replace(call, answer=None))
        query = call.query
        if query.messages:
            prompt = json.dumps(query.messages, default=str)
            form = {name: query.options[name] for name in _DIGEST_OPTIONS if query.options.get(name) is not None}
            hashed = prompt + json.dumps(form, sort_keys=True, default=str) if form else prompt
            row["prompt_digest"] = hashlib.sha256(hashed.encode()).hexdigest()[:_DIGITS]
            row |= {"prompt": prompt} if self.prompts else {}
        row |= {} if self.replica is None else {"replica": self.replica}
        self._lines.append(json.dumps(row, allow_nan=False).encode() + b"\n")

    def write_or_count(self, call: Call) -> str | None:
        """Append a call, or count it as lost, and raise nothing, since an answer must not be withheld.

        Returns a message for people when losses begin and when they end, else None.
        """
        outcome, reason = "written", ""
        try:
            self.write(call)
        except Exception as problem:
            outcome = "lost"
            reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
        with self._lock:
            before, self._lost = self._lost, self._lost + 1 if outcome == "lost" else 0
        if self.observe is not None:
            self.observe(outcome)
        where = self.path or "standard output"
        if outcome == "lost":
            return None if before else f"calls are not logged: {where}: {reason}"
        return f"calls are logged again: {where}: {count(before, 'call')} lost before" if before else None

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._lines.close()

    def __enter__(self) -> CallLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def call_row(call: Call) -> dict[str, Any]:
    """Return a call as a line of a log, without its text, as JSON values."""
    query, handling = call.query, call.query.handling
    row: dict[str, Any] = {"call_log": VERSION, "query": query.id}
    names = [column.name for column in fields(call) if column.name not in _NOT_IN_LINE]
    row |= {name: getattr(call, name) for name in names}
    row["logprob"] = "-inf" if call.logprob == -math.inf else call.logprob  # JSON has no infinity
    row |= {"calibrated": call.confidence, "seconds": round(call.seconds, 6), "time": row.pop("time")}
    row |= {"shadow": handling.is_shadow_query, "segment": query.segment, "client": query.client}
    row |= {"not_judged": handling.not_judged} | ({} if handling.charge is None else asdict(handling.charge))
    return {name: value for name, value in row.items() if name not in _OPTIONAL or value not in (None, 0)}


def has_failed(row: Mapping[str, Any]) -> bool:
    """Return whether a line of a log is a failed call; an answer without a confidence is not a failure.

    >>> [has_failed(row) for row in ({"error": "HTTP 500"}, {"error": "no letter", "has_no_confidence": True}, {})]
    [True, False, False]
    """
    return row.get("error") is not None and not row.get("has_no_confidence")


def require_query(query_id: Any, messages: Any) -> None:
    """Refuse an invalid id or invalid messages with a TypeError."""
    is_id = isinstance(query_id, Integral | NoneType) or (isinstance(query_id, str) and query_id.strip())
    if isinstance(query_id, bool) or not is_id:
        raise TypeError(f"query_id must be a whole number, or a text that is not empty, not {describe_type(query_id)}")
    is_list = isinstance(messages, Sequence) and messages and all(isinstance(message, Mapping) for message in messages)
    if not isinstance(messages, str) and not is_list:
        wanted = "messages must be a text, or a list of messages as the API has them, with one at least"
        raise TypeError(f"{wanted}, not {describe_type(messages)}")
