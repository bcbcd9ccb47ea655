"""Checks of a policy and of the model that it was tuned by: promises on held-out queries, drift, decisions.

Takes a policy or a model, and a `Log`; gives a `PolicyCheck` or a `Diagnosis`, with advice."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
