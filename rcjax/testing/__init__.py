"""The check of a user-defined family of copulas against its contract.

    from rcjax.testing import check_copula

    check_copula(MyFamily)         # at its default, the ends of its support, and several τ
    check_copula(MyFamily(0.7))    # at one parameter

Takes a class or an instance; raises an AssertionError that names each failed law and its worst point. The families of
rcjax pass the same check.
"""

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
