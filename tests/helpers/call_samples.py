"""Calls for call logs."""

import dataclasses
from pathlib import Path

from rcjax.serving.call_log import Call, CallLog

DAY = "2026-11-24"
CALL = Call(
    query="q1",
    model="small",
    endpoint_name="org/small",
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
    shadow=True,
    error=None,
)


def call(query: object, model: str = "small", **changes: object) -> Call:
    return dataclasses.replace(CALL, query=str(query), model=model, **changes)


def both(query: object, **changes: object) -> tuple[Call, Call]:
    """Both models on a query; the small one answers B, the large one C."""
    large = {"answer": "C", "logprob": -0.01, "cost": 2e-4}
    return call(query, "small", **changes), call(query, "large", **large | changes)


def write(path: Path, *calls: Call, **options: object) -> Path:
    with CallLog(path, **options) as log:
        for one in calls:
            log.write(one)
    return path
