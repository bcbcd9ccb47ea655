"""Bivariate copulas: the base class, and the families by kind.

Takes ranks u and v in (0, 1) and parameters, as arrays that broadcast; gives cdf, conditionals, densities, draws and τ.
"""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
