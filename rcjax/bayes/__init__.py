"""Bayesian inference: the posterior of the model's parameters given a log, and credible bands of a frontier.

Takes a `Log`, and a `Frontier`; gives draws of models, and `Bands`. Needs `rcjax[posterior]`."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
