"""The contracts of families of one's own, as checks that say what fails and where: copulas, marginals.

    from rcjax.testing import check_copula, check_marginal

    check_copula(MyFamily)         # at its default, the ends of its support, and several τ
    check_copula(MyFamily(0.7))    # at one parameter
    check_marginal(MyMarginal)     # at its default, and at the ends of its support

Takes a class or an instance; gives nothing, or an AssertionError. The families of rcjax are tested with nothing weaker.
"""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
