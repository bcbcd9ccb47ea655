"""The public names: each is imported when it is first used."""

from rcjax.copulas.archimedean import (
    Clayton as Clayton,
    Frank as Frank,
    Gumbel as Gumbel,
    Joe as Joe,
    NegativeClayton as NegativeClayton,
    SurvivalClayton as SurvivalClayton,
    SurvivalGumbel as SurvivalGumbel,
    SurvivalJoe as SurvivalJoe,
)
from rcjax.copulas.base import Copula as Copula, Rotation as Rotation, TailDependence as TailDependence, param as param
from rcjax.copulas.closed_forms import (
    BB1 as BB1,
    BB7 as BB7,
    FGM as FGM,
    Independence as Independence,
    Plackett as Plackett,
    Tawn as Tawn,
)
from rcjax.copulas.elliptical import Gaussian as Gaussian, StudentT as StudentT
