"""Tests of a fitted model: goodness of fit of marginals and copulas, calibration, the Markov property, two samples.

Takes a `CascadeModel`, or confidences alone; gives statistics and p-values, which `rcjax.tuning.diagnostics` judges."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
