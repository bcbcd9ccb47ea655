"""Calls for call logs."""

from dataclasses import fields, replace
from pathlib import Path

from rcjax.serving.call_log import Call, CallLog, Handling, Query

DAY = "2026-11-24"
CALL = Call(
    query=Query("q1", (), handling=Handling(is_shadow_query=True)),
    model="small",
    upstream_model="org/small",
    text="B",
    answer="B",
    logprob=-0.1,
    confidence=0.8,
    cost=1e-5,
    input_tokens=90,
    output_tokens=1,
    estimated=False,
    attempts=1,
    seconds=0.25,
    time=f"{DAY}T10:00:00Z",
    error=None,
)


def call(query: object, model: str = "small", **changes: object) -> Call:
    """The sample with other values of its fields, and of its query's fields."""
    return vary(CALL, id=str(query), model=model, **changes)


def vary(call: Call, **changes: object) -> Call:
    """A call with other values of its fields, and of its query's and its handling's fields."""
    of_handling = {one.name: changes.pop(one.name) for one in fields(Handling) if one.name in changes}
    of_query = {one.name: changes.pop(one.name) for one in fields(Query) if one.name in changes}
    return replace(call, query=replace(call.query, **of_query).with_handling(**of_handling), **changes)


def both(query: object, **changes: object) -> tuple[Call, Call]:
    """Both models on a query; the small one answers B, the large one C."""
    large = {"answer": "C", "logprob": -0.01, "cost": 2e-4}
    return call(query, "small", **changes), call(query, "large", **large | changes)


def write(path: Path, *calls: Call, **options: object) -> Path:
    with CallLog(path, **options) as log:
        for one in calls:
            log.write(one)
    return path
