"""Sweeps: the product of logs, cascades, copulas, prices, replicates and seeds, solved in equal-shaped batches."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
