"""Policies on logged queries: who answers, what it costs, what is wrong; the area under a curve.

Takes policies or a frontier and a `Log`; gives counts. Nothing here is modelled."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
