"""Families as users would write them."""

import jax

from rcjax.copulas import Clayton, Copula, Joe, Rotation, param


class FGM(Copula):
    """A family as a user would write it; its τ is 2 θ / 9."""

    theta: jax.Array = param(0.5, support=(-1.0, 1.0))

    def cdf(self, u, v):
        return u * v * (1 + self.theta * (1 - u) * (1 - v))


class Clayton90(Rotation, family=Clayton, degrees=90):
    pass


class Clayton270(Rotation, family=Clayton, degrees=270):
    pass


class Joe90(Rotation, family=Joe, degrees=90):
    pass


class Lopsided(Copula):
    """A user's family that is not exchangeable."""

    theta: jax.Array = param(0.5, support=(0.0, 1.0))

    def cdf(self, u, v):
        return u * v * (1 + self.theta * (1 - u) * (1 - v) * v)
