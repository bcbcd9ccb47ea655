"""How the page tells thresholds that pass on a share of some queries."""

from types import SimpleNamespace

import numpy as np

import rcjax
from rcjax._base.wording import choose_unit
from rcjax.policy import Rule
from rcjax.report import page

SPLIT = (Rule(0.41, "ask", "large"), Rule(0.62, "ask", "large", share=0.3), Rule(1, "answer"))


def policy():
    plain = rcjax.policy.Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
    names = ("small", "large")
    rules = {"small": SPLIT, "large": [Rule(1, "answer")]}
    return rcjax.Policy(names, dict.fromkeys(names, plain), rules, {"small": 1.0, "large": 9.0})


def test_a_point_of_the_frontier(monkeypatch):
    """The page's row of a model, and the cascade in a line."""
    told = {"error": 0.1, "cost": 1e-4, "cost_low": 1e-5, "cost_high": 1e-3, "error_low": 0.0, "error_high": 0.2}
    own = SimpleNamespace(**{name: getattr(policy(), name) for name in ("models", "rules", "agreements")})
    own.expected, own.to_json = told, lambda: policy().to_json()
    frontier = SimpleNamespace(models=own.models, thresholds=np.array([[0.62, 0.0]]), point=lambda index: own)
    selection = SimpleNamespace(verdict=lambda index: "")
    parts = {"frontier": frontier, "shares": np.array([[0.7, 0.3]]), "selection": selection}
    findings = SimpleNamespace(**parts)
    for name in ("_tried_itself", "_waits", "_target", "_verdict"):
        monkeypatch.setattr(page, name, lambda *_: {})
    point = page._point(findings, 0, [0.0, 0.0], np.array([0.5, 0.1]), choose_unit([1e-4]))
    assert point["cascade"] == "small >0.62 (70 % of >0.41) → large"
    assert point["rows"][0]["answers"] == "above 0.62, and 70 % of those above 0.41"
    assert point["rows"][0]["raw"] == "as logged: above 0.50, and some below"
