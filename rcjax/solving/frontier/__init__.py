"""Frontiers and policies as arrays: what solvers give and everything after them takes.

Takes points in order of λ; gives the policy for a target, mixtures, intervals, files."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
