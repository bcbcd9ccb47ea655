"""rcjax: confidence thresholds for LLM cascades.

From a log of what some LLMs answered, how confident they were and whether they were right, to the error–cost frontier
of the best cascade at every price of an error, and a policy to deploy. After "Rational Tuning of LLM Cascades via
Probabilistic Modeling" (Zellinger & Thomson 2025, arXiv 2501.09345).

Names are imported when they are first used, so that `rcjax.policy` needs nothing but the standard library.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# No module bears the name of anything exported: importing a submodule sets the attribute of the package.
_HOMES = {
    "_replay": ("Replay", "area_under_curve", "replay"),
    "calibration": ("expected_calibration_error",),
    "cascade": ("error_and_cost",),
    "copulas": (
        "Clayton",
        "Copula",
        "Frank",
        "Gaussian",
        "Gumbel",
        "Independence",
        "Joe",
        "Rotation",
        "StudentT",
        "SurvivalClayton",
        "SurvivalGumbel",
        "SurvivalJoe",
        "param",
    ),
    "diagnostics": ("Diagnosis", "diagnose"),
    "demo": ("demo_model", "sample_log"),
    "frontier": ("Frontier", "InfeasibleError", "load_frontier", "solve_frontier"),
    "joint": ("CascadeModel", "fit", "load_model", "sample_confidences"),
    "logs": ("IncompleteLogWarning", "Log", "LogError", "read_log"),
    "marginals": ("Marginal",),
    "policy": ("Policy", "load_policy"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from rcjax._replay import Replay, area_under_curve, replay
    from rcjax.calibration import expected_calibration_error
    from rcjax.cascade import error_and_cost
    from rcjax.copulas import (
        Clayton,
        Copula,
        Frank,
        Gaussian,
        Gumbel,
        Independence,
        Joe,
        Rotation,
        StudentT,
        SurvivalClayton,
        SurvivalGumbel,
        SurvivalJoe,
        param,
    )
    from rcjax.demo import demo_model, sample_log
    from rcjax.diagnostics import Diagnosis, diagnose
    from rcjax.frontier import Frontier, InfeasibleError, load_frontier, solve_frontier
    from rcjax.joint import CascadeModel, fit, load_model, sample_confidences
    from rcjax.logs import IncompleteLogWarning, Log, LogError, read_log
    from rcjax.marginals import Marginal
    from rcjax.policy import Policy, load_policy

__all__ = [
    "CascadeModel",
    "Clayton",
    "Copula",
    "Diagnosis",
    "Frank",
    "Frontier",
    "Gaussian",
    "Gumbel",
    "IncompleteLogWarning",
    "Independence",
    "InfeasibleError",
    "Joe",
    "Log",
    "LogError",
    "Marginal",
    "Policy",
    "Replay",
    "Rotation",
    "StudentT",
    "SurvivalClayton",
    "SurvivalGumbel",
    "SurvivalJoe",
    "area_under_curve",
    "demo_model",
    "diagnose",
    "error_and_cost",
    "expected_calibration_error",
    "fit",
    "load_frontier",
    "load_model",
    "load_policy",
    "param",
    "read_log",
    "replay",
    "sample_confidences",
    "sample_log",
    "solve_frontier",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"rcjax.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    # Submodules are attributes too, as they would be had they been imported here.
    try:
        return importlib.import_module(f"rcjax.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"rcjax.{name}":
            raise
        raise AttributeError(f"module 'rcjax' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
