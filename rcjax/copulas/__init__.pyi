"""The public names: each is imported when it is first used."""

from rcjax.copulas.ali_mikhail_haq import AMH as AMH
from rcjax.copulas.base import Copula as Copula, TailDependence as TailDependence, param as param
from rcjax.copulas.bb1 import BB1 as BB1
from rcjax.copulas.bb7 import BB7 as BB7
from rcjax.copulas.clayton import Clayton as Clayton, SurvivalClayton as SurvivalClayton
from rcjax.copulas.families import OneOf as OneOf
from rcjax.copulas.fgm import FGM as FGM
from rcjax.copulas.frank import Frank as Frank
from rcjax.copulas.gaussian import Gaussian as Gaussian
from rcjax.copulas.gumbel import Gumbel as Gumbel, SurvivalGumbel as SurvivalGumbel
from rcjax.copulas.independence import Independence as Independence
from rcjax.copulas.joe import Joe as Joe, SurvivalJoe as SurvivalJoe
from rcjax.copulas.negative import (
    NegativeClayton as NegativeClayton,
    NegativeGumbel as NegativeGumbel,
    NegativeJoe as NegativeJoe,
)
from rcjax.copulas.plackett import Plackett as Plackett
from rcjax.copulas.rotation import Rotation as Rotation
from rcjax.copulas.student_t import StudentT as StudentT
from rcjax.copulas.tawn import Tawn as Tawn
