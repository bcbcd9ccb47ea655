"""Calls and results, for tests of what a gateway counts."""

import math

from helpers.call_samples import CALL, vary
from rcjax.serving.call_log import Result


def make_call(model="small", **changes):
    sample = vary(CALL, model=model, upstream_model=f"org/{model}", is_shadow_query=False)
    return vary(sample, **{"time": "2026-01-01T00:00:00.000+00:00", **changes})


def make_result(status="answered", calls=None):
    """A result whose last call is the one that counts."""
    calls = (make_call(),) if calls is None else tuple(calls)
    gives = status in ("answered", "best so far")
    model = calls[-1].model if status != "failed" else None
    text = "B" if gives else None
    query = CALL.query.with_handling(not_judged=status if status in ("not judged", "by name") else None)
    return Result(query, status, text, text, model, 0.8, math.fsum(call.cost for call in calls), calls)
