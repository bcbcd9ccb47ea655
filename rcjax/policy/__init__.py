"""What is deployed: a policy, or a ladder of several. Standard library only.

Takes what `rcjax tune` wrote, and what a model answered and how sure it was; gives the decision to answer, to ask
another model, or to refuse."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
