"""rcjax: confidence thresholds for LLM cascades.

From a log of what some LLMs answered, how confident they were and whether they were right, to the error–cost frontier
of the best cascade at every price of an error, and a policy to deploy. After "Rational Tuning of LLM Cascades via
Probabilistic Modeling" (Zellinger & Thomson 2025, arXiv 2501.09345).

Most programs need only these names; the packages hold the rest: `rcjax.copulas`, `rcjax.solving`, `rcjax.report.plots`.
Names are imported when they are first used, so that `rcjax.policy` needs nothing but the standard library.
"""

from rcjax._base.extras import lazy_exports as _lazy_exports

# No module bears the name of anything that its package exports: importing a submodule sets the package's attribute.
_look_up, __dir__, __all__ = _lazy_exports(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from rcjax._base.extras import version

        return version()
    return _look_up(name)
