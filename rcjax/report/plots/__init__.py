"""Figures of a frontier, of a diagnosis and of copulas, drawn into a given matplotlib Axes or Figure.

Needs matplotlib (`pip install 'rcjax[plots]'`). The colours of Okabe & Ito (2008) are safe for the colour-blind, and
series differ in marker or line too.
"""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
