"""From a log to the policies that beat single models: candidates by labels, cross-validation, intervals, guarantees.

Takes a `Log`; gives a `Frontier`, how sure it is, and a policy for a target."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
