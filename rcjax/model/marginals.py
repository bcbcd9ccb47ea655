"""The distribution of one model's calibrated confidence: point masses, and a smooth part between the outermost.

Section 4.1 of Zellinger & Thomson (2025):

    F = w_min δ(φ_min) + (1 − w_min − w_max) · G((φ − φ_min)/(φ_max − φ_min)) + w_max δ(φ_max)

with G a distribution on (0, 1): the paper's is a mixture of two betas (`rcjax.model.beta_mixture`), and a family of
one's own is its cdf. Where a model states few values, those between are masses too, and G has what they leave:

    F = Σ_a w_a δ(φ_a) + (1 − Σ_a w_a) · G

φ_min and φ_max are the extremes of the training confidences, the masses are counted, and G is fitted to the rest. All
functions are scalar mathematics on one marginal, elementwise in their other argument.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.exporting import exportable
from rcjax._core.numerics import bisection, divide, implicit_root, open_unit, sorted_numbers
from rcjax._core.parametric import NO_PARAMETER, Parametric, param as param, subclasses

#: Confidences nearer to an atom than this, in units in the last place of 1, are the atom: others computed it.
_SNAP = 8

#: A mean is taken panel by panel between quantiles of these log-odds, by so many Gauss nodes in each.
_LEVELS, _NODES = np.linspace(-22.0, 22.0, 45), 12


@exportable
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Atoms:
    """Point masses between the ends of a marginal, by rising confidence. Places that none takes: φ_max, of mass 0."""

    value: jax.Array  # (A,) calibrated confidence
    mass: jax.Array  # (A,) its probability

    @property
    def stated(self) -> jax.Array:
        """(A,) the confidences, infinite in places that none takes."""
        return jnp.where(self.mass > 0, self.value, jnp.inf)


def at_value(confidence: jax.Array, values: jax.Array) -> jax.Array:
    """(…, A) bool: which of the values (A,), at most one, a confidence is; a value that is infinite is none.

    >>> at_value(jnp.array([0.5, 0.6]), jnp.array([0.5, jnp.inf])).tolist()
    [[True, False], [False, False]]
    """
    near = jnp.abs(jnp.asarray(confidence)[..., None] - values) <= _SNAP * float(jnp.finfo(values.dtype).eps)
    return near & first_true(near)


def first_true(condition: jax.Array) -> jax.Array:
    """(…, A) bool: where the first that is true stands along the last axis; where none is, the first of all."""
    return jnp.argmax(condition, axis=-1)[..., None] == np.arange(condition.shape[-1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Probes:
    """Points around every feature of a distribution on (0, 1), from 0 to 1, P of them."""

    x: jax.Array  # (P,) increasing
    components: jax.Array  # (P, 2) the cdfs of two components; of another law, its own twice
    z: jax.Array  # (P,) the cdf
    density: jax.Array  # (P,)


#: Methods that are made of point masses and smooth part together, which nobody overrides.
_WHOLE = ("cdf", "density", "quantile", "mean_above", "profile", "mass_ranks", "sample")


class Marginal(Parametric):
    """The mixed discrete–continuous marginal of a calibrated confidence. A leading axis batches it over models.

    A family is a subclass: its annotated parameters (`param`) and `smooth_cdf(x)`, the cdf of the smooth part scaled to
    (0, 1), in scalar mathematics. Density, quantiles and means follow, and the point masses are looked after; any
    `smooth_…` method may be replaced by a closed form, and `rcjax.testing.check_marginal` says whether all agree.
    `rcjax.fit(log, marginal=…)` fits it. TypeError for a subclass that overrides what is made of masses and smooth part
    together, such as `cdf`.

    >>> class Kumaraswamy(Marginal):
    ...     a: float = param(1.0, support=(0.01, 1e3))
    ...     b: float = param(1.0, support=(0.01, 1e3))
    ...     def smooth_cdf(self, x):
    ...         return 1 - (1 - x**self.a) ** self.b
    >>> own = Kumaraswamy(lowest=0.2, mass_highest=0.1, a=2.0, b=3.0)
    >>> round(float(own.cdf(0.6)), 4), round(float(own.quantile(own.cdf(0.6))), 4)
    (0.5203, 0.6)
    """

    #: () φ_min
    lowest: jax.Array = dataclasses.field(default=0.0, metadata=NO_PARAMETER, kw_only=True)  # pyright: ignore
    #: () φ_max
    highest: jax.Array = dataclasses.field(default=1.0, metadata=NO_PARAMETER, kw_only=True)  # pyright: ignore
    #: () w_min
    mass_lowest: jax.Array = dataclasses.field(default=0.0, metadata=NO_PARAMETER, kw_only=True)  # pyright: ignore
    #: () w_max
    mass_highest: jax.Array = dataclasses.field(default=0.0, metadata=NO_PARAMETER, kw_only=True)  # pyright: ignore
    #: Point masses between the ends; None: there are none.
    atoms: Atoms | None = dataclasses.field(default=None, metadata=NO_PARAMETER, kw_only=True)

    #: The axes of each parameter of the smooth part behind those of a batch, as `jnp.vectorize` writes them.
    parameter_axes: ClassVar[str] = "(k)"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        made = [name for name in _WHOLE if name in vars(cls)]
        if made:
            raise TypeError(
                f"{cls.__name__} overrides {made[0]}, which is made of the point masses and of the smooth part: define "
                "smooth_cdf(self, x), the cdf of the smooth part scaled to (0, 1), or another method whose name begins "
                "with smooth_"
            )
        super().__init_subclass__(**kwargs)

    # The smooth part, on (0, 1).

    def smooth_cdf(self, x: ArrayLike) -> jax.Array:
        """G(x), the cdf of the smooth part scaled to (0, 1)."""
        raise TypeError(f"{type(self).__name__} defines no smooth_cdf(self, x)")

    def held_cdf(self, x: ArrayLike) -> jax.Array:
        """G(x), 0 and 1 at the ends, where a formula need not hold: it and its derivatives are taken inside alone."""
        x = jnp.asarray(x)
        inside = (x > 0) & (x < 1)
        return jnp.where(inside, self.smooth_cdf(jnp.where(inside, x, 0.5)), jnp.clip(x, 0.0, 1.0))

    def smooth_density(self, x: ArrayLike) -> jax.Array:
        """dG/dx inside (0, 1); 0 at either end."""
        x = jnp.asarray(x, jnp.result_type(float))
        inside = (x > 0) & (x < 1)
        safe = jnp.where(inside, x, 0.5)
        return jnp.where(inside, jax.jvp(self.smooth_cdf, (safe,), (jnp.ones_like(safe),))[1], 0.0)

    def smooth_log_density(self, x: ArrayLike) -> jax.Array:
        """log dG/dx inside (0, 1)."""
        return jnp.log(self.smooth_density(x))

    def smooth_quantile(self, z: ArrayLike) -> jax.Array:
        """The x with G(x) = z, by bisection on the scale of log(x / (1 − x)); gradients are implicit."""
        z = jnp.asarray(z, jnp.result_type(float))
        inside = (z > 0) & (z < 1)

        def invert(z: jax.Array) -> jax.Array:
            info = jnp.finfo(z.dtype)
            solve = bisection(jnp.log(info.tiny), -jnp.log(info.epsneg), z.dtype)
            return implicit_root(lambda logit: self.held_cdf(jax.nn.sigmoid(logit)) - z, solve, z.dtype)

        root = jax.nn.sigmoid(jnp.vectorize(invert)(jnp.where(inside, z, 0.5)))
        return jnp.where(inside, root, jnp.clip(z, 0.0, 1.0))

    def smooth_mean_above(self, x: ArrayLike) -> jax.Array:
        """∫ₓ¹ t dG = x (1 − G(x)) + ∫ₓ¹ (1 − G), by Gauss–Legendre quadrature between quantiles."""
        x = jnp.asarray(x, jnp.result_type(float))
        inner = lax.stop_gradient(
            open_unit(self.smooth_quantile(open_unit(jax.nn.sigmoid(jnp.asarray(_LEVELS, x.dtype)))))
        )
        edges = jnp.concatenate([jnp.zeros_like(inner[:1]), inner, jnp.ones_like(inner[:1])])

        right = np.arange(1, len(edges))
        whole = self._above_between(edges[:-1], edges[1:], (right == 1) | (right == len(right)))
        beyond = jnp.append(jnp.cumsum(whole[::-1])[::-1], jnp.zeros_like(whole[:1]))
        right = jnp.clip(jnp.searchsorted(edges, x, side="right", method="compare_all"), 1, len(edges) - 1)
        partial = self._above_between(x, edges[right], (right == 1) | (right == len(edges) - 1))
        return x * (1 - self.held_cdf(x)) + partial + beyond[right]

    def _above_between(self, low: jax.Array, high: jax.Array, outer: ArrayLike) -> jax.Array:
        """∫ (1 − G) from low to high, elementwise, on the scale of log-odds; linearly in an outermost panel, which is
        without end there, and where G is as good as 0 or 1."""
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        share, outer = jnp.asarray((nodes + 1) / 2, low.dtype), jnp.asarray(outer)
        safe_low, safe_high = jnp.where(outer, 0.5, low), jnp.where(outer, 0.5, high)
        start, end = (jnp.log(one) - jnp.log1p(-one) for one in map(open_unit, (safe_low, safe_high)))
        width = jnp.where(outer, high - low, end - start)[..., None]
        odds = jax.nn.sigmoid(start[..., None] + width * share)
        points = jnp.where(outer[..., None], low[..., None] + width * share, odds)
        slope = jnp.where(outer[..., None], 1.0, odds * (1 - odds))
        return (width * slope * (1 - self.held_cdf(points))) @ jnp.asarray(weights / 2, low.dtype)

    def smooth_profile(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(G(x), its density, ∫ₓ¹ t dG), elementwise."""
        return self.held_cdf(x), self.smooth_density(x), self.smooth_mean_above(x)

    def quantiles_and_means(self, z: jax.Array, first: int, probes: Probes) -> tuple[jax.Array, jax.Array]:
        """(x with G(x) = z, ∫₀ˣ t dG of those from number `first` on); `probes` are where a search may begin."""
        x = self.smooth_quantile(z)
        return x, self.smooth_mean_above(jnp.zeros_like(x, shape=())) - self.smooth_mean_above(x[first:])

    def probes(self) -> Probes:
        """Points around every feature of the smooth part, in which panels of quadrature are laid out."""
        dtype = jnp.result_type(float)
        logit = jnp.linspace(-1.0, 1.0, 129, dtype=dtype) * -jnp.log(jnp.finfo(dtype).epsneg)
        even = jax.nn.sigmoid(logit)
        x = jnp.sort(jnp.concatenate([even, self.smooth_quantile(even)]))
        x = jnp.clip(x, jnp.finfo(dtype).tiny, 1 - jnp.finfo(dtype).epsneg)
        z = jnp.pad(jnp.clip(self.held_cdf(x), 0.0, 1.0), 1, constant_values=(0.0, 1.0))
        density = jnp.pad(self.smooth_density(x), 1, mode="edge")
        return Probes(jnp.pad(x, 1, constant_values=(0.0, 1.0)), jnp.stack([z, z], axis=-1), z, density)

    # The whole distribution.

    @property
    def smooth(self) -> jax.Array:
        """1 − Σ w, the probability of the continuous part."""
        rest = 1 - self.mass_lowest - self.mass_highest
        if self.atoms is not None:
            rest = rest - self.atoms.mass.sum(-1)
            # Where every value is an atom, what rounding leaves is nothing.
            rest = jnp.where(rest > 64 * jnp.finfo(rest.dtype).eps, rest, 0.0)
        return jnp.maximum(rest, 0.0)

    def cdf(self, confidence: jax.Array) -> jax.Array:
        """F(φ) = P(Φ ≤ φ), differentiable in φ and in every parameter.

        >>> from rcjax.model.beta_mixture import BetaMixture
        >>> round(float(BetaMixture(0., 1., 0.2, 0.3, jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2)).cdf(0.5)), 4)
        0.45
        """
        scaled = self._scale(confidence)
        inner = self.mass_lowest + self.smooth * self.held_cdf(scaled) + self._atoms_up_to(confidence)
        return jnp.where(confidence < self.lowest, 0.0, jnp.where(confidence >= self.highest, 1.0, inner))

    def density(self, confidence: jax.Array) -> jax.Array:
        """Density of the smooth part, (1 − Σ w) times that of G; 0 outside (φ_min, φ_max)."""
        return self.profile(confidence)[1]

    def quantile(self, u: jax.Array) -> jax.Array:
        """Q(u) = F⁻¹(u), flat at the point masses: φ_min for u ≤ w_min, φ_max for u ≥ 1 − w_max."""
        u = jnp.asarray(u, dtype=jnp.result_type(self.lowest))
        if self.atoms is None:
            z = jnp.clip(divide(u - self.mass_lowest, self.smooth, 0.5), 0.0, 1.0)
            inner = self.lowest + (self.highest - self.lowest) * self.smooth_quantile(z)
        else:
            inner = self._quantile_among_atoms(u, self.atoms)
        top = 1 - self.mass_highest
        return jnp.where(u <= self.mass_lowest, self.lowest, jnp.where(u >= top, self.highest, inner))

    def mean_above(self, confidence: jax.Array) -> jax.Array:
        """E[Φ; Φ > φ] = ∫_{F(φ)}^1 Q, elementwise."""
        return self.profile(confidence)[2]

    def profile(self, confidence: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(F(φ), density(φ), E[Φ; Φ > φ]), elementwise, from one `smooth_profile`."""
        confidence = jnp.asarray(confidence)
        x, width = self._scale(confidence), self.highest - self.lowest
        z, steepness, scaled = self.smooth_profile(x)
        left, right = confidence < self.lowest, confidence >= self.highest
        cdf = jnp.where(left, 0.0, jnp.where(right, 1.0, self.mass_lowest + self.smooth * z))
        density = divide(self.smooth * steepness, width)
        smooth = self.smooth * (self.lowest * (1 - z) + width * scaled)
        if self.atoms is not None:
            above = 1 - self._at_or_above(confidence, self.atoms)
            cdf = jnp.where(left | right, cdf, cdf + self._atoms_up_to(confidence))
            smooth += (above * self.atoms.mass * self.atoms.value).sum(-1)
        bottom = jnp.where(left, self.mass_lowest * self.lowest, 0.0)
        return cdf, density, bottom + jnp.where(right, 0.0, smooth + self.mass_highest * self.highest)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of the confidence, of the given shape."""
        return self.quantile(jax.random.uniform(key, shape, dtype=jnp.result_type(self.lowest)))

    def mass_ranks(self) -> tuple[jax.Array, jax.Array]:
        """(start, end), each (2 + A,), of the point masses on the scale of ranks u, by rising confidence.

        The first starts at 0, the last one ends at 1. Start and end are equal where no atom takes the place.
        """
        bottom, top = jnp.asarray(self.mass_lowest)[None], 1 - jnp.asarray(self.mass_highest)[None]
        starts, ends = [jnp.zeros_like(bottom), top], [bottom, jnp.ones_like(top)]
        if self.atoms is not None:
            start, end = self._atom_ranks(self.atoms)
            starts.insert(1, start)
            ends.insert(1, end)
        return jnp.concatenate(starts), jnp.concatenate(ends)

    def _atom_ranks(self, atoms: Atoms) -> tuple[jax.Array, jax.Array]:
        """(start, end), each (A,), of the atoms alone."""
        below = self.mass_lowest + self.smooth * self.held_cdf(self._scale(atoms.value))
        end = below + atoms.mass @ np.tri(atoms.mass.shape[-1], dtype=atoms.mass.dtype).T
        return end - atoms.mass, end

    def at_atom(self, confidence: jax.Array) -> jax.Array:
        """(…, A) bool: which atom, at most one, a confidence is."""
        assert self.atoms is not None, "this marginal has no atoms"
        return at_value(confidence, self.atoms.stated)

    @property
    def snap(self) -> float:
        """How near to an atom a confidence is the atom, computed by others."""
        return _SNAP * float(jnp.finfo(jnp.result_type(self.lowest, float)).eps)

    def _at_or_above(self, confidence: jax.Array, atoms: Atoms) -> jax.Array:
        """(…, A) 1 where a confidence is an atom or above it, else 0."""
        return (jnp.asarray(confidence)[..., None] >= atoms.value - self.snap).astype(atoms.mass.dtype)

    def _atoms_up_to(self, confidence: jax.Array) -> jax.Array | float:
        """The probability of the atoms at most at a confidence, elementwise."""
        return 0.0 if self.atoms is None else (self._at_or_above(confidence, self.atoms) * self.atoms.mass).sum(-1)

    def _quantile_among_atoms(self, u: jax.Array, atoms: Atoms) -> jax.Array:
        """Q(u) between the masses at the ends, elementwise: an atom's value on the ranks that it takes."""
        start, end = self._atom_ranks(atoms)
        passed = jnp.clip(u[..., None] - start, 0.0, atoms.mass).sum(-1)
        z = jnp.clip(divide(u - self.mass_lowest - passed, self.smooth, 0.5), 0.0, 1.0)
        inner = self.lowest + (self.highest - self.lowest) * self.smooth_quantile(z)
        # With nothing smooth between them, ranks that rounding leaves between two atoms are the upper one's.
        above = (u[..., None] <= end) & (atoms.mass > 0) & ((u[..., None] > start) | (self.smooth == 0))
        here = above & first_true(above)
        return jnp.where(here.any(-1), (here * atoms.value).sum(-1), jnp.where(self.smooth > 0, inner, self.highest))

    def _scale(self, confidence: jax.Array) -> jax.Array:
        return jnp.clip(divide(confidence - self.lowest, self.highest - self.lowest, 0.5), 0.0, 1.0)


def as_marginal(name: str | type[Marginal]) -> type[Marginal]:
    """The class of a family of marginals by its name, in any case; ValueError names the families there are.

    Every subclass of `Marginal` that has been defined is known by its name, the user's own included.
    """
    if isinstance(name, type) and issubclass(name, Marginal):
        return name
    families = {family.__name__.lower(): family for family in subclasses(Marginal)}
    key = str(name).lower().replace("_", "").replace("-", "")
    if key not in families:
        raise ValueError(
            f"unknown marginal {name!r}; the families are {', '.join(sorted(families))}, or a subclass of "
            "rcjax.model.Marginal, which must have been defined or imported before it is named"
        )
    return families[key]


def cramer_von_mises(marginal: Marginal, confidence: jax.Array, present: jax.Array | None = None) -> jax.Array:
    """√∫ (F̂_n − F)² dF of a sample against a marginal: the distance in tables 5 and 6 of the paper.

    confidence (n,), of which only what is `present` (n,) counts. The integral is exact: over the continuous part F̂_n
    is a step function of u = F(φ), so each step contributes a cubic, and at φ_min and the atoms the squared difference
    counts with their mass.

    >>> from rcjax.model.beta_mixture import BetaMixture
    >>> uniform = BetaMixture(0., 1., 0., 0., jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2))
    >>> round(float(cramer_von_mises(uniform, jnp.array([0.5]))), 4)        # √(1/12)
    0.2887
    """
    present = jnp.ones(confidence.shape, bool) if present is None else present
    n = present.sum()
    u = sorted_numbers(jnp.where(present, marginal.cdf(confidence), jnp.inf))
    start, end = jnp.asarray(marginal.mass_lowest), 1 - jnp.asarray(marginal.mass_highest)
    edges = jnp.concatenate([start[None], jnp.clip(u, start, end), end[None]])
    level = jnp.minimum(jnp.arange(len(confidence) + 1) / n, 1.0)
    smooth = ((level - edges[:-1]) ** 3 - (level - edges[1:]) ** 3).sum() / 3
    at_lowest = ((present & (confidence <= marginal.lowest)).sum() / n - start) ** 2
    if marginal.atoms is None:
        return jnp.sqrt(smooth + start * at_lowest)
    begin, stop = (edge[1:-1] for edge in marginal.mass_ranks())
    # What falls on an atom has the rank of its end, so within its ranks F̂_n does not rise.
    before = jnp.searchsorted(u, (begin + stop) / 2, side="right") / n
    inside = ((before - begin) ** 3 - (before - stop) ** 3) / 3
    through = (present[:, None] & (confidence[:, None] <= marginal.atoms.value + marginal.snap)).sum(0) / n
    at_atoms = marginal.atoms.mass * (through - stop) ** 2
    across = jnp.where(marginal.atoms.mass > 0, at_atoms - inside, 0.0).sum()
    squared = smooth + across + start * at_lowest
    # With every value an atom nothing but rounding is left, which must not tell one sample from another.
    return jnp.sqrt(jnp.where(squared > 64 * jnp.finfo(squared.dtype).eps, squared, 0.0))
