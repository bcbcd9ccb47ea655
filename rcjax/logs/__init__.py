"""Logs of answers: reading and checks, prices, later labels, and the sample that a policy carries.

Takes files and dataframes with one row per query and model; gives a `Log`, matrices of queries by models. Names are
imported at their first use: collecting and importing answers needs no JAX."""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
