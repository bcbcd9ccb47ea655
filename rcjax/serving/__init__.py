"""Asking models: one request to an endpoint, a cascade that runs a policy, and the log of what was asked.

Input: a policy and queries. Output: answers, and lines of a call log for tuning."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
