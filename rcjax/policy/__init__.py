"""Policies to deploy, single or in a ladder. Standard library only.

Input: a policy file of `rcjax tune`, and a model's answer with its confidence. Output: the decision to answer, to ask
another model, or to abstain."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
