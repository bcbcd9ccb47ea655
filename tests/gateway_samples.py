"""Policies with queries, calls and results, for tests of what a gateway shows."""

import base64
import math
import random
import struct

from rcjax.policy import Abstain, Calibration, Defer, Policy, Rule
from rcjax.serving.call_log import Call
from rcjax.serving.cascade import Result

MODELS = ("small", "middle", "large")
COST = {"small": 1e-5, "middle": 1e-4, "large": 1e-3}
CALIBRATION = Calibration("generation", intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
ANSWER = Rule(1.0, "answer")
RULES = {
    "small": (Rule(0.05, "abstain"), Rule(0.6, "ask", "middle"), ANSWER),
    "middle": (Rule(0.5, "ask", "large"), ANSWER),
    "large": (ANSWER,),
}


def draw_logprob(rng, moved=1.0):
    """The log of a uniform probability, one in five of them certain; `moved` makes the others surer or less sure."""
    return 0.0 if rng.random() < 0.2 else moved * math.log(1.0 - rng.random())


def make_reference(n, seed=0):
    """Queries as `rcjax.logs.kept_sample.describe_reference` keeps them, answered by all models."""
    rng = random.Random(seed)

    def packed(kind, numbers):
        return base64.b64encode(struct.pack(f"<{len(numbers)}{kind}", *numbers)).decode()

    models = {
        model: {
            "logprob": packed("f", [draw_logprob(rng) for _ in range(n)]),
            "correct": packed("B", [0] * -(-n // 8)),
            "cost": packed("e", [1.0] * n),
            "mean_cost": COST[model],
        }
        for model in MODELS
    }
    return {"queries": n, "models": models}


def make_policy(n=360, seed=0, **changes):
    parts = {
        "models": MODELS,
        "calibrations": dict.fromkeys(MODELS, CALIBRATION),
        "rules": RULES,
        "cost": COST,
        "expected": {"error": 0.1, "cost": 3e-5},
        "provenance": {"reference": make_reference(n, seed)},
    }
    return Policy(**{**parts, **changes})


def make_call(model="small", **changes):
    parts = {
        "query": "q1",
        "model": model,
        "served": f"org/{model}",
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


def ask(policy, rng, moved=1.0):
    """The result of a query through a policy, with raw confidences drawn as those of the reference were."""
    calls = []
    model = policy.first
    while model is not None:
        logprob = draw_logprob(rng, moved)
        decision = policy.step(model, logprob=logprob)
        calls.append(make_call(model, logprob=logprob, confidence=decision.confidence, cost=COST[model]))
        model = decision.next_model if isinstance(decision, Defer) else None
    return make_result("abstained" if isinstance(decision, Abstain) else "answered", calls)
