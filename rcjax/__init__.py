"""rcjax: confidence thresholds for LLM cascades.

From a log of what some LLMs answered, how confident they were and whether they were right, to the error–cost frontier
of the best cascade at every price of an error, and a policy to deploy. After "Rational Tuning of LLM Cascades via
Probabilistic Modeling" (Zellinger & Thomson 2025, arXiv 2501.09345).

Names are imported when they are first used, so that `rcjax.policy` needs nothing but the standard library.
"""

import importlib
from typing import TYPE_CHECKING

# No module bears the name of anything exported: importing a submodule sets the attribute of the package.
_HOMES = {
    "_overlap": ("OverlapWarning",),
    "_replay": ("Replay", "area_under_curve", "replay"),
    "bands": ("Bands",),
    "calibration": ("expected_calibration_error",),
    "calls": ("CallLog",),
    "cascade": ("error_and_cost",),
    "choice": ("Selection", "select_frontier"),
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
    "crossvalidation": ("Comparison",),
    "demo": ("demo_model", "sample_log"),
    "diagnostics": ("Diagnosis", "diagnose"),
    "drift": ("PolicyCheck", "check_policy"),
    "exporting": ("Solver", "export_solver", "load_solver"),
    "expected_loss": ("credible_bands", "posterior_figures", "solve_expected"),
    "frontier": ("Frontier", "InfeasibleError", "load_frontier", "solve_frontier"),
    "guarantee": ("Certificate", "certify"),
    "joint": ("CascadeModel", "fit", "load_model", "sample_confidences"),
    "learning": ("LearningCurve", "learning_curve"),
    "logs": ("IncompleteLogWarning", "LeftOutWarning", "Log", "LogError", "read_log"),
    "marginals": ("Marginal",),
    "mixture": ("Mixture",),
    "policy": ("Policy", "load_policy"),
    "posterior": ("Posterior", "sample_posterior"),
    "report": ("Report", "make_report"),
    "resampling": ("bootstrap",),
    "retuning": ("Retuned", "retune"),
    "_tune": ("Tuned", "tune"),
    "run": ("Cascade", "CascadeError"),
    "sweeps": ("Sweep", "sweep"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__: str

if TYPE_CHECKING:
    from rcjax._overlap import OverlapWarning
    from rcjax._replay import Replay, area_under_curve, replay
    from rcjax._tune import Tuned, tune
    from rcjax.bands import Bands
    from rcjax.calibration import expected_calibration_error
    from rcjax.calls import CallLog
    from rcjax.cascade import error_and_cost
    from rcjax.choice import Selection, select_frontier
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
    from rcjax.crossvalidation import Comparison
    from rcjax.demo import demo_model, sample_log
    from rcjax.diagnostics import Diagnosis, diagnose
    from rcjax.drift import PolicyCheck, check_policy
    from rcjax.expected_loss import credible_bands, posterior_figures, solve_expected
    from rcjax.exporting import Solver, export_solver, load_solver
    from rcjax.frontier import Frontier, InfeasibleError, load_frontier, solve_frontier
    from rcjax.guarantee import Certificate, certify
    from rcjax.joint import CascadeModel, fit, load_model, sample_confidences
    from rcjax.learning import LearningCurve, learning_curve
    from rcjax.logs import IncompleteLogWarning, LeftOutWarning, Log, LogError, read_log
    from rcjax.marginals import Marginal
    from rcjax.mixture import Mixture
    from rcjax.policy import Policy, load_policy
    from rcjax.posterior import Posterior, sample_posterior
    from rcjax.report import Report, make_report
    from rcjax.resampling import bootstrap
    from rcjax.retuning import Retuned, retune
    from rcjax.run import Cascade, CascadeError
    from rcjax.sweeps import Sweep, sweep

__all__ = [
    "Bands",
    "CallLog",
    "Cascade",
    "CascadeError",
    "CascadeModel",
    "Certificate",
    "Clayton",
    "Comparison",
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
    "LearningCurve",
    "LeftOutWarning",
    "Log",
    "LogError",
    "Marginal",
    "Mixture",
    "OverlapWarning",
    "Policy",
    "PolicyCheck",
    "Posterior",
    "Replay",
    "Report",
    "Retuned",
    "Rotation",
    "Selection",
    "Solver",
    "StudentT",
    "SurvivalClayton",
    "SurvivalGumbel",
    "SurvivalJoe",
    "Sweep",
    "Tuned",
    "area_under_curve",
    "bootstrap",
    "certify",
    "check_policy",
    "credible_bands",
    "demo_model",
    "diagnose",
    "error_and_cost",
    "expected_calibration_error",
    "export_solver",
    "fit",
    "learning_curve",
    "load_frontier",
    "load_model",
    "load_policy",
    "load_solver",
    "make_report",
    "param",
    "posterior_figures",
    "read_log",
    "replay",
    "retune",
    "sample_confidences",
    "sample_log",
    "sample_posterior",
    "select_frontier",
    "solve_expected",
    "solve_frontier",
    "sweep",
    "tune",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
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


def _version() -> str:
    from rcjax._version import version

    return version()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
