"""rcjax: confidence thresholds for LLM cascades.

From a log of what some LLMs answered, how confident they were and whether they were right, to the error–cost frontier
of the best cascade at every price of an error, and a policy to deploy. After "Rational Tuning of LLM Cascades via
Probabilistic Modeling" (Zellinger & Thomson 2025, arXiv 2501.09345).

Names are imported when they are first used, so that `rcjax.policy` needs nothing but the standard library.
"""

import importlib
from typing import TYPE_CHECKING

# No package bears the name of anything exported: importing a submodule sets the attribute of the package.
_HOMES = {
    "_core.smoothing": (
        "smooth_maximum",
        "smooth_quantile",
    ),
    "bayes.credible_bands": (
        "credible_bands",
        "posterior_figures",
    ),
    "bayes.posterior": (
        "Posterior",
        "sample_posterior",
    ),
    "bayes.priors": ("Priors",),
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
    "diagnostics": (
        "Diagnosis",
        "diagnose",
    ),
    "diagnostics.influence": (
        "Influence",
        "influence",
    ),
    "diagnostics.policy_check": (
        "PolicyCheck",
        "check_policy",
    ),
    "diagnostics.segment_check": (
        "SegmentsCheck",
        "check_segments",
    ),
    "frontier.bands": ("Bands",),
    "frontier.frontier": (
        "Frontier",
        "InfeasibleError",
        "load_frontier",
    ),
    "frontier.seconds": ("Seconds",),
    "importing.evaluations": ("read_evaluations",),
    "logs.hand_labels": ("HandLabels",),
    "logs.log": (
        "IncompleteLogWarning",
        "LeftOutWarning",
        "Log",
        "NoConfidenceWarning",
        "PartsWarning",
        "PricesWarning",
        "UnlabelledWarning",
    ),
    "logs.reading": (
        "LogError",
        "read_log",
    ),
    "model.calibration_error": ("expected_calibration_error",),
    "model.cascade_model": (
        "CascadeModel",
        "load_model",
    ),
    "model.demo": (
        "demo_model",
        "sample_log",
    ),
    "model.fitting": ("fit",),
    "model.marginals": ("Marginal",),
    "model.pair_fitting": ("fit_copula",),
    "model.sampling": ("sample_confidences",),
    "policy.files": ("load_policy",),
    "policy.mixture": ("Mixture",),
    "policy.policy": ("Policy",),
    "policy.reference": ("Reference",),
    "policy.scores": ("Scores",),
    "policy.segmented": ("SegmentedPolicy",),
    "policy.spec": ("Spec",),
    "replaying.curves": ("area_under_curve",),
    "replaying.replay": (
        "Replay",
        "replay",
    ),
    "report": (
        "Report",
        "make_report",
    ),
    "serving.call_log": (
        "CallLog",
        "Roll",
    ),
    "serving.cascade": (
        "Cascade",
        "CascadeError",
    ),
    "solving.minimise": ("minimise",),
    "solving.objective": ("error_and_cost",),
    "solving.outcome": (
        "Outcome",
        "outcome",
        "outcomes",
    ),
    "solving.solution": (
        "Solution",
        "solve",
    ),
    "solving.solve": ("solve_frontier",),
    "sweeps": (
        "Sweep",
        "sweep",
    ),
    "tuning.bootstrap": ("bootstrap",),
    "tuning.certify": (
        "Certificate",
        "certify",
    ),
    "tuning.comparison": ("Comparison",),
    "tuning.learning_curve": (
        "LearningCurve",
        "learning_curve",
    ),
    "tuning.overlap": ("OverlapWarning",),
    "tuning.retune": (
        "Retuned",
        "retune",
    ),
    "tuning.select": (
        "Selection",
        "select_frontier",
    ),
    "tuning.tune": (
        "Tuned",
        "tune",
    ),
    "tuning.tune_segments": ("tune_segments",),
    "tuning.tuned_segments": ("TunedSegments",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

#: What there was, and what does its work now.
__version__: str

if TYPE_CHECKING:
    from rcjax._core.smoothing import smooth_maximum, smooth_quantile
    from rcjax.bayes.credible_bands import credible_bands, posterior_figures
    from rcjax.bayes.posterior import Posterior, sample_posterior
    from rcjax.bayes.priors import Priors
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
    from rcjax.diagnostics import Diagnosis, diagnose
    from rcjax.diagnostics.influence import Influence, influence
    from rcjax.diagnostics.policy_check import PolicyCheck, check_policy
    from rcjax.diagnostics.segment_check import SegmentsCheck, check_segments
    from rcjax.frontier.bands import Bands
    from rcjax.frontier.frontier import Frontier, InfeasibleError, load_frontier
    from rcjax.frontier.seconds import Seconds
    from rcjax.importing.evaluations import read_evaluations
    from rcjax.logs.hand_labels import HandLabels
    from rcjax.logs.log import (
        IncompleteLogWarning,
        LeftOutWarning,
        Log,
        NoConfidenceWarning,
        PartsWarning,
        PricesWarning,
        UnlabelledWarning,
    )
    from rcjax.logs.reading import LogError, read_log
    from rcjax.model.calibration_error import expected_calibration_error
    from rcjax.model.cascade_model import CascadeModel, load_model
    from rcjax.model.demo import demo_model, sample_log
    from rcjax.model.fitting import fit
    from rcjax.model.marginals import Marginal
    from rcjax.model.pair_fitting import fit_copula
    from rcjax.model.sampling import sample_confidences
    from rcjax.policy.files import load_policy
    from rcjax.policy.mixture import Mixture
    from rcjax.policy.policy import Policy
    from rcjax.policy.reference import Reference
    from rcjax.policy.scores import Scores
    from rcjax.policy.segmented import SegmentedPolicy
    from rcjax.policy.spec import Spec
    from rcjax.replaying.curves import area_under_curve
    from rcjax.replaying.replay import Replay, replay
    from rcjax.report import Report, make_report
    from rcjax.serving.call_log import CallLog, Roll
    from rcjax.serving.cascade import Cascade, CascadeError
    from rcjax.solving.minimise import minimise
    from rcjax.solving.objective import error_and_cost
    from rcjax.solving.outcome import Outcome, outcome, outcomes
    from rcjax.solving.solution import Solution, solve
    from rcjax.solving.solve import solve_frontier
    from rcjax.sweeps import Sweep, sweep
    from rcjax.tuning.bootstrap import bootstrap
    from rcjax.tuning.certify import Certificate, certify
    from rcjax.tuning.comparison import Comparison
    from rcjax.tuning.learning_curve import LearningCurve, learning_curve
    from rcjax.tuning.overlap import OverlapWarning
    from rcjax.tuning.retune import Retuned, retune
    from rcjax.tuning.select import Selection, select_frontier
    from rcjax.tuning.tune import Tuned, tune
    from rcjax.tuning.tune_segments import tune_segments
    from rcjax.tuning.tuned_segments import TunedSegments

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
    "HandLabels",
    "IncompleteLogWarning",
    "Independence",
    "InfeasibleError",
    "Influence",
    "Joe",
    "LearningCurve",
    "LeftOutWarning",
    "Log",
    "LogError",
    "Marginal",
    "Mixture",
    "NoConfidenceWarning",
    "Outcome",
    "OverlapWarning",
    "PartsWarning",
    "Policy",
    "PolicyCheck",
    "Posterior",
    "PricesWarning",
    "Priors",
    "Reference",
    "Replay",
    "Report",
    "Retuned",
    "Roll",
    "Rotation",
    "Scores",
    "Seconds",
    "SegmentedPolicy",
    "SegmentsCheck",
    "Selection",
    "Solution",
    "Spec",
    "StudentT",
    "SurvivalClayton",
    "SurvivalGumbel",
    "SurvivalJoe",
    "Sweep",
    "Tuned",
    "TunedSegments",
    "UnlabelledWarning",
    "area_under_curve",
    "bootstrap",
    "certify",
    "check_policy",
    "check_segments",
    "credible_bands",
    "demo_model",
    "diagnose",
    "error_and_cost",
    "expected_calibration_error",
    "fit",
    "fit_copula",
    "influence",
    "learning_curve",
    "load_frontier",
    "load_model",
    "load_policy",
    "make_report",
    "minimise",
    "outcome",
    "outcomes",
    "param",
    "posterior_figures",
    "read_evaluations",
    "read_log",
    "replay",
    "retune",
    "sample_confidences",
    "sample_log",
    "sample_posterior",
    "select_frontier",
    "smooth_maximum",
    "smooth_quantile",
    "solve",
    "solve_frontier",
    "sweep",
    "tune",
    "tune_segments",
]

#: Names that were there in the release before, and what to use instead.
_GONE = dict.fromkeys(
    ("Solver", "export_solver", "load_solver"),
    "was part of exporting the program that solves a frontier, and is gone: commands keep what they compile by "
    "themselves, and so does a program of your own that sets jax_compilation_cache_dir",
) | {
    "solve_expected": "is gone: the search of least expected loss was measured to lose: use rcjax.tune, or "
    "rcjax.credible_bands for what the posterior says of a frontier"
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"rcjax.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _GONE:
        raise AttributeError(f"rcjax.{name} {_GONE[name]}")
    # Submodules are attributes too, as they would be had they been imported here.
    try:
        return importlib.import_module(f"rcjax.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"rcjax.{name}":
            raise
        raise AttributeError(f"module 'rcjax' has no attribute {name!r}") from None


def _version() -> str:
    from rcjax._base.version import version

    return version()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
