"""Is the model right on this log? Goodness of fit, the Markov property, predictions against what is seen, verdicts."""

from rcjax._base.exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
