"""Clayton, Gumbel and Joe turned by 90 degrees: negative dependence with tails."""

from rcjax.copulas.clayton import Clayton
from rcjax.copulas.gumbel import Gumbel
from rcjax.copulas.joe import Joe
from rcjax.copulas.rotation import Rotation


class NegativeClayton(Rotation, of=Clayton, degrees=90):
    """The law of (1 − U, V) for a Clayton (U, V): low values of V come with high ones of the first.

    >>> float(NegativeClayton(2.0).tau())
    -0.5
    """


class NegativeGumbel(Rotation, of=Gumbel, degrees=90):
    """The law of (1 − U, V) for a Gumbel (U, V): high values of V come with low ones of the first.

    >>> float(NegativeGumbel(2.0).tau())
    -0.5
    """


class NegativeJoe(Rotation, of=Joe, degrees=90):
    """The law of (1 − U, V) for a Joe (U, V): high values of V come with low ones of the first.

    >>> round(float(NegativeJoe(2.0).tau()), 4)
    -0.3551
    """
