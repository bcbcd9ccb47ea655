"""Importers of evaluations and call logs of other programs, one module per format.

Takes their files; gives a line of a call log for each answer (`lines.Line`), and joins the lines into a table for
`read_log`."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
