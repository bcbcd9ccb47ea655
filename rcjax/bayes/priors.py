"""The priors of the Bayesian model at the head of `rcjax.bayes.hierarchy`, as one record."""

import dataclasses
import math
from numbers import Real

import jax

from rcjax._base.checks import instance

#: Fields that may be any number; all others are scales, counts and a mean, which are above 0.
_ANY = ("slope_center", "tau_center")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Priors:
    """The constants of the priors, each a number; what stands here is what logs of LLM answers are like.

    α, β: intercept and slope of logit P(correct) on the standardised confidence, by model. N(m, s²) has the standard
    deviation s.

    >>> Priors(tau_center=0.6).dependence_spread
    0.7
    """

    intercept_scale: float = 2.5  # α ~ N(0, ·²)
    slope_center: float = 1.0  # of the models' common slope β̄ ~ N(·, slope_scale²)
    slope_scale: float = 1.0
    slope_spread: float = 0.5  # how far models are from it: β ~ N(β̄, ·²)
    mass_count: float = 0.5  # as many answers at each place: masses ~ Dirichlet(·, …, ·)
    share_count: float = 2.0  # share of the upper component ~ Beta(·, ·)
    mean_scale: float = 1.5  # logit of the lower component's mean ~ N(0, ·²)
    gap_center: float = 1.5  # from there to the upper one's: log ~ N(log ·, gap_scale²)
    gap_scale: float = 0.5
    concentration_center: float = 6.0  # a + b of a component: log ~ N(log ·, concentration_scale²)
    concentration_scale: float = 1.0
    tau_center: float = 0.3  # Kendall's τ of the pairs' common dependence t ~ N(t₀, dependence_scale²), at t₀
    dependence_scale: float = 1.0
    dependence_spread: float = 0.7  # how far pairs are from it: t_ij ~ N(t, ·²)

    def check(self) -> "Priors":
        """Itself; raise ValueError, or TypeError, for what is no number that can be one of them.

        >>> Priors(slope_spread=0.0).check()
        Traceback (most recent call last):
        ValueError: priors: slope_spread is 0; it must be above 0
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in values.items():
            instance(value, Real, f"priors: {name}")
            if not math.isfinite(value) or (value <= 0 and name not in _ANY):
                wanted = "a finite number" if name in _ANY or value > 0 else "above 0"
                raise ValueError(f"priors: {name} is {value:g}; it must be {wanted}")
        if not -1 < self.tau_center < 1:
            raise ValueError(f"priors: tau_center is {self.tau_center:g}; it must lie between -1 and 1")
        return self


#: Those that are meant where nothing else is said.
PRIORS = Priors()
