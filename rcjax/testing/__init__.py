"""Checks of user-defined families of copulas and marginals against their contracts.

    from rcjax.testing import check_copula, check_marginal

    check_copula(MyFamily)         # at its default, the ends of its support, and several τ
    check_copula(MyFamily(0.7))    # at one parameter
    check_marginal(MyMarginal)     # at its default, and at the ends of its support

Takes a class or an instance; raises an AssertionError that names each failed law and its worst point. The families of
rcjax pass the same checks.
"""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
