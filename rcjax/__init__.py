"""rcjax: confidence thresholds for LLM cascades.

From a log of what some LLMs answered, how confident they were and whether they were right, to the error–cost frontier
of the best cascade at every price of an error, and a policy to deploy. After "Rational Tuning of LLM Cascades via
Probabilistic Modeling" (Zellinger & Thomson 2025, arXiv 2501.09345).

What most programs need is here; the rest is in the packages, such as `rcjax.copulas`, `rcjax.solving`, `rcjax.plots`.
Names are imported when they are first used, so that `rcjax.policy` needs nothing but the standard library.
"""

import warnings

from rcjax._base.exports import exports

# No module bears the name of anything that its package exports: importing a submodule sets the package's attribute.
_look_up, __dir__, __all__ = exports(__name__, __file__)

#: What the packages export that was here in the release before.
PACKAGES = {
    "bayes": ["Posterior", "Priors", "credible_bands", "posterior_figures", "sample_posterior"],
    "copulas": [
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
    ],
    "diagnostics": ["Diagnosis", "PolicyCheck"],
    "frontier": ["Bands", "Seconds"],
    "importing": ["read_evaluations"],
    "logs": [
        "HandLabels",
        "IncompleteLogWarning",
        "LeftOutWarning",
        "NoConfidenceWarning",
        "PricesWarning",
        "UnlabelledWarning",
    ],
    "model": ["Marginal", "expected_calibration_error", "fit_copula", "load_model", "sample_confidences"],
    "policy": ["Reference", "Scores"],
    "replaying": ["Replay", "area_under_curve"],
    "report": ["Report"],
    "solving": [
        "Outcome",
        "Solution",
        "error_and_cost",
        "minimise",
        "outcome",
        "outcomes",
        "smooth_maximum",
        "smooth_quantile",
        "solve",
    ],
    "sweeps": ["Sweep", "sweep"],
    "tuning": [
        "Certificate",
        "Comparison",
        "OverlapWarning",
        "Retuned",
        "Selection",
        "bootstrap",
        "select_frontier",
    ],
}

#: Names that were there in the release before, and what to use instead.
_GONE = dict.fromkeys(
    ("Solver", "export_solver", "load_solver"),
    "was part of exporting the program that solves a frontier, and is gone: commands keep what they compile by "
    "themselves, and so does a program of your own that sets jax_compilation_cache_dir",
) | {
    "solve_expected": "is gone: the search of least expected loss was measured to lose: use rcjax.tune, or "
    "rcjax.bayes.credible_bands for what the posterior says of a frontier"
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from rcjax._base.version import version

        return version()
    if name in _GONE:
        raise AttributeError(f"rcjax.{name} {_GONE[name]}")
    for package, names in PACKAGES.items():
        if name in names:
            warnings.warn(f"rcjax.{name} is rcjax.{package}.{name} now", DeprecationWarning, stacklevel=2)
            return getattr(_look_up(package), name)
    return _look_up(name)
