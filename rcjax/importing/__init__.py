"""Logs of evaluations that other programs wrote, one module per format.

Takes their files; gives a line of a call log for each answer (`lines.Line`), and of these the table that `read_log`
takes."""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
