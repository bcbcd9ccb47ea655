"""The Markov-copula model of a cascade's confidences: calibration, marginals, copulas of pairs, fitting, sampling.

Takes a `Log`; gives a `CascadeModel`, a frozen pytree."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
