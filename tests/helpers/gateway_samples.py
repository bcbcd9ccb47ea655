"""Calls and results, for tests of what a gateway counts."""

import math

from rcjax.serving.call_log import Call
from rcjax.serving.cascade import Result


def make_call(model="small", **changes):
    parts = {
        "query": "q1",
        "model": model,
        "endpoint_name": f"org/{model}",
        "text": "B",
        "answer": "B",
        "logprob": -0.1,
        "confidence": 0.8,
        "cost": 1e-5,
        "input_tokens": 90,
        "output_tokens": 1,
        "estimated": False,
        "attempts": 1,
        "seconds": 0.25,
        "time": "2026-01-01T00:00:00.000+00:00",
        "shadow": False,
        "error": None,
    }
    return Call(**{**parts, **changes})


def make_result(status="answered", calls=None):
    """A result whose last call is the one that counts."""
    calls = (make_call(),) if calls is None else tuple(calls)
    gives = status in ("answered", "best so far")
    model = calls[-1].model if status != "failed" else None
    text = "B" if gives else None
    return Result("q1", status, text, text, model, 0.8, math.fsum(call.cost for call in calls), calls)
