"""Frontiers and policies as arrays: the results of searches, which the rest of the toolkit and the product take.

Takes points in order of λ; gives the policy for a target, mixtures, intervals, files."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
