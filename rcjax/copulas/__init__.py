"""Bivariate copulas: the base class, and the families by kind."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
