"""Is a policy right, and what it was tuned by? Promises and predictions against queries left out, drift, verdicts.

Takes a policy or a model, and a `Log`; gives a `PolicyCheck` or a `Diagnosis`, with what to do."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
