"""Replays of policies on logged queries: the answering models, costs and errors; areas under error–cost curves.

Takes policies or a frontier and a `Log`; gives counts, without a model of the queries."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
