"""Bivariate copulas: the base class, and one file per family."""

from rcjax.copulas.base import Copula, param
from rcjax.copulas.gumbel import Gumbel
from rcjax.copulas.independence import Independence

__all__ = ["Copula", "Gumbel", "Independence", "param"]
