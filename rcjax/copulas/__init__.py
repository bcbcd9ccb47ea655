"""Bivariate copulas: the base class, and the families by kind."""

from rcjax.copulas.base import Copula, param
from rcjax.copulas.clayton import Clayton, SurvivalClayton
from rcjax.copulas.frank import Frank
from rcjax.copulas.gaussian import Gaussian
from rcjax.copulas.gumbel import Gumbel, SurvivalGumbel
from rcjax.copulas.independence import Independence
from rcjax.copulas.joe import Joe, SurvivalJoe
from rcjax.copulas.one_of import OneOf
from rcjax.copulas.rotation import Rotation
from rcjax.copulas.student_t import StudentT

__all__ = [
    "Clayton",
    "Copula",
    "Frank",
    "Gaussian",
    "Gumbel",
    "Independence",
    "Joe",
    "OneOf",
    "Rotation",
    "StudentT",
    "SurvivalClayton",
    "SurvivalGumbel",
    "SurvivalJoe",
    "param",
]
