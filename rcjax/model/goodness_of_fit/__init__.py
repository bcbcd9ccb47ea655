"""Tests of a fitted model: goodness of fit of marginals and copulas, calibration, the Markov property, two samples.

Takes a `CascadeModel`, or confidences alone; gives statistics and p-values, which `rcjax.tuning.diagnostics` judges."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
