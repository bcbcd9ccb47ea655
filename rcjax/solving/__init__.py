"""The error–cost frontier of a fitted model: quadrature, the objective, Bellman's equation, λ grids.

Takes a `CascadeModel`; gives a `Frontier`."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
