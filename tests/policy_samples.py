"""A policy of three models, and its JSON."""

from rcjax.policy import Calibration, Policy, Rule

GENERATION = Calibration("generation", intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
CHOICE = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.125, largest=10.0)
PLAIN = Calibration("none", intercept=2.0, slope=4.0, smallest=-3.0, largest=0.0)


def make_policy(**changes):
    parts = {
        "models": ("small", "médium", "large"),
        "calibrations": {"small": GENERATION, "médium": CHOICE, "large": PLAIN},
        "rules": {
            "small": (Rule(0.3, "ask", "large"), Rule(0.7, "ask", "médium"), Rule(1.0, "answer")),
            "médium": (Rule(0.6, "ask", "large"), Rule(1.0, "answer")),
            "large": (Rule(1.0, "answer"),),
        },
        "cost": {"small": 1e-5, "médium": 1 / 3e4, "large": 2e-4},
        "prices": {"small": {"input": 0.1, "output": 0.4}},
        "expected": {"error": 0.1, "cost": 3e-5, "lam": 0.0, "error_cost": None},
        "provenance": {"queries": 300, "versions": {"rcjax": "0.1.0"}, "notes": ["λ", True, None, 0.5]},
    }
    return Policy(**{**parts, **changes})


def make_json(**changes):
    return {**make_policy().to_json(), **changes}
