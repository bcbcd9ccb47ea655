"""Figures of a frontier, of a diagnosis and of copulas: each draws into the matplotlib Axes, or Figure, it is given.

Needs matplotlib (`pip install 'rcjax[plots]'`). Colours are those of Okabe & Ito (2008), which the colour-blind tell
apart; what matters differs in shape or line too.
"""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
