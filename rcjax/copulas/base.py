"""The base class of bivariate copulas: a family defines its cdf, and the other methods are derived.

A family is a subclass with annotated parameters and `cdf(u, v)` in scalar mathematics. Subclassing makes it a frozen
dataclass and a pytree. Conditionals and densities come from autodiff, their inverses and τ⁻¹ from root finding with
implicit gradients, τ from quadrature, and batches from broadcasting or `jax.vmap`. A closed form may replace any
derived method. `Rotation` turns any family.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike

from rcjax._base.codec import describe_type
from rcjax._core.numerics import (
    Unit,
    as_floats,
    bisection,
    bracketed_newton,
    implicit_root,
    open_unit,
    stacked_with_flips,
    unit,
)

#: The largest distance that a fit by likelihood goes from the finite end of a half-open support, or from 0.
FARTHEST_PARAMETER = 300.0


def param(default: float, *, support: tuple[float, float], grid: tuple[float, ...] = (), free: bool = True) -> Any:
    """Declare a parameter of a family.

    Args:
        default: default value.
        support: closed interval of its values. The family must be defined at each finite end; for an open end, give a
            number inside.
        grid: values that a fit by likelihood tries, to keep the best.
        free: whether a fit may change it.
    """
    low, high = support
    if not low <= default <= high:
        raise ValueError(f"default {default} lies outside the support {support}")
    metadata = {"support": (float(low), float(high)), "grid": tuple(grid), "free": free}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(param, dataclasses.field))
class Copula:
    """A bivariate copula C(u, v); its parameters are the fields of the dataclass.

    Every method is elementwise: u, v and the parameters broadcast against each other, in jax's default float type.
    A parameter outside its support raises ValueError, unless JAX traces and its value is unknown.

    >>> class MyFGM(Copula):
    ...     theta: float = param(0.5, support=(-1.0, 1.0))
    ...     def cdf(self, u, v):
    ...         return u * v * (1 + self.theta * (1 - u) * (1 - v))
    >>> round(float(MyFGM(0.9).tau()), 4)      # 2 θ / 9
    0.2
    >>> MyFGM(1.5)
    Traceback (most recent call last):
    ...
    ValueError: MyFGM: theta is 1.5; it must lie in [-1, 1]
    """

    #: Supports of the parameters; names of the free parameters; grids over which a fit profiles other parameters.
    supports: ClassVar[dict[str, tuple[float, float]]] = {}
    free: ClassVar[tuple[str, ...]] = ()
    grids: ClassVar[dict[str, tuple[float, ...]]] = {}
    #: Whether C(u, v) = C(v, u) is known to hold; likelihoods then use one conditional for both margins.
    exchangeable: ClassVar[bool] = False
    #: The largest |τ| of `from_tau`: beyond it two models' confidences are the same to the resolution of a log.
    MAX_TAU: ClassVar[float] = 0.98

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        cls.supports = {f.name: f.metadata.get("support", (-np.inf, np.inf)) for f in fields}
        cls.grids = {f.name: f.metadata["grid"] for f in fields if f.metadata.get("grid")}
        cls.free = tuple(f.name for f in fields if f.metadata.get("free", True) and f.name not in cls.grids)
        _register(cls, tuple(f.name for f in fields))

    def __post_init__(self) -> None:
        for name, (low, high) in self.supports.items():
            value = getattr(self, name)
            if isinstance(value, str | bytes | type):
                raise TypeError(f"{name} must be an array of numbers, not {describe_type(value)}")
            if isinstance(value, Tracer) or (values := np.asarray(value)).dtype.kind not in "fiu":
                continue
            beyond = ~((values >= low) & (values <= high) & np.isfinite(values))
            if beyond.any():
                worst = values[beyond].flat[0]
                left, right = "[" if np.isfinite(low) else "(", "]" if np.isfinite(high) else ")"
                interval = f"{left}{low:g}, {high:g}{right}"
                raise ValueError(f"{type(self).__name__}: {name} is {worst:g}; it must lie in {interval}")

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return C(u, v) = P(U ≤ u, V ≤ v)."""
        raise TypeError(f"{type(self).__name__} defines no cdf(self, u, v)")

    def conditional(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return h(v given u) = ∂C/∂u = P(V ≤ v | U = u)."""
        return self._pointwise(lambda copula, u, v: jax.grad(copula.cdf)(u, v), u, v)

    def conditional_on_v(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return ∂C/∂v = P(U ≤ u | V = v)."""
        return self._pointwise(lambda copula, u, v: jax.grad(copula.cdf, argnums=1)(u, v), u, v)

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return log c(u, v) = log ∂²C/∂u∂v; −∞ outside the unit square."""
        density = self._pointwise(lambda copula, u, v: jax.grad(copula.conditional, argnums=1)(u, v), u, v)
        beyond = is_outside_square(u, v)
        return jnp.where(beyond, -jnp.inf, jnp.log(jnp.where(beyond, 1.0, density)))

    def pdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return the density c(u, v) = ∂²C/∂u∂v; 0 outside the unit square."""
        return jnp.exp(self.log_density(u, v))

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """Solve h(v given u) = p for v, by Newton's method on the scale of log(v / (1 − v)); gradients are implicit."""
        return self._inverse(unit(u), unit(p)).value

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> tuple[jax.Array, jax.Array]:
        """Draw (u, v) by inverting the conditional (Rosenblatt 1952), each (*shape, *parameters' shape).

        >>> from rcjax.copulas import Frank
        >>> Frank(np.array([2.0, 5.0])).sample(jax.random.key(0), (3,))[0].shape
        (3, 2)
        """
        batch = np.broadcast_shapes(*map(jnp.shape, jax.tree.leaves(self)))
        u, p = open_unit(jax.random.uniform(key, (2, *shape, *batch)))
        return u, self.inverse_conditional(u, p)

    def tau(self) -> jax.Array:
        """Compute Kendall's τ = 4 E[C(U, V)] − 1, by Gauss–Legendre quadrature over u and p = h(V given u)."""
        return self._pointwise(tau_by_quadrature)

    def spearman(self) -> jax.Array:
        """Compute Spearman's ρ = 12 ∫∫ C(u, v) du dv − 3, by Gauss–Legendre quadrature.

        >>> from rcjax.copulas import Clayton, Gaussian
        >>> round(float(Gaussian(0.5).spearman()), 4), round(float(Clayton(2.0).spearman()), 4)
        (0.4826, 0.6822)
        """
        node, weight = gauss_nodes()
        # Near a ridge, which 48 nodes do not resolve, the sum may exceed 1.
        return self._pointwise(
            lambda copula: jnp.clip(12 * weight @ copula.cdf(node[:, None], node) @ weight - 3, -1.0, 1.0)
        )

    def tail_dependence(self) -> "TailDependence":
        """Return the limits of P(V ≤ q | U ≤ q) and of P(V > 1 − q | U > 1 − q), as q falls to 0.

        A family without closed forms takes the lower share at q = 10⁻⁸ and the upper share at 10⁻⁵, where 1 − q
        keeps digits. These exceed the limits if convergence is slow.

        >>> from rcjax.copulas import Gumbel
        >>> [round(float(share), 4) for share in Gumbel(2.0).tail_dependence()]
        [0.0, 0.5858]
        """
        low, high = 1e-8, 1e-5
        below, _ = self.two_sided_cdf(unit(low), unit(low))
        _, above = self.two_sided_cdf(unit(1 - high), unit(1 - high))
        return TailDependence(below / low, above / high)

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Find the member of the family whose Kendall's τ is nearest to `tau`, clipped to ±0.98.

        Bisection solves for the first free parameter. Other parameters keep their defaults, unless the family sets them
        from τ. Gradients are implicit.
        """
        if not cls.free:
            raise TypeError(f"{cls.__name__} has no free parameter to fit to tau")
        name, goals = cls.free[0], cls._clip_tau(tau)
        fixed = _defaults(cls) | cls._other_parameters(goals)
        others = {field: goals * 0 + value for field, value in fixed.items() if field != name}

        def solve(goal: jax.Array, *values: jax.Array) -> jax.Array:
            fixed = dict(zip(others, values, strict=True))
            return _match_tau(lambda value: cls(**{name: value}, **fixed).tau(), cls, goal)

        return cls(**{name: jnp.vectorize(solve)(goals, *others.values())}, **others)

    @classmethod
    def _other_parameters(cls, tau: jax.Array) -> dict[str, Any]:
        """Return the parameters, by name, that `from_tau` sets from τ in place of their defaults; elementwise in τ."""
        return {}

    @classmethod
    def _clip_tau(cls, tau: ArrayLike) -> jax.Array:
        """Clip τ to ±0.98, as an array of JAX's default float type."""
        return jnp.clip(as_floats(tau), -cls.MAX_TAU, cls.MAX_TAU)

    # Methods that take u together with 1 − u, for copulas written in terms of another copula (`Rotation`). Closed forms
    # keep the digits that 1 − u loses (`ClosedForm`); a family given by its cdf alone loses them.

    def with_score(self, u: Unit) -> Unit:
        """Return u with the score of u that stays the same during a fit, such as its normal score; by default u itself.

        A likelihood prepares its data once, and then evaluates many members of the family.
        """
        return u

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return (P(U ≤ u, V ≤ v), P(U > u, V > v))."""
        below = self.cdf(u.value, v.value)
        return below, u.complement - v.value + below

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h(v given u) and its complement."""
        return unit(self.conditional(u.value, v.value))

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """Return ∂C/∂v and its complement."""
        return unit(self.conditional_on_v(u.value, v.value))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c(u, v)."""
        return self.log_density(u.value, v.value)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve h(v given u) = p for v and its complement."""
        return unit(self.inverse_conditional(u.value, p.value))

    def _inverse(self, u: Unit, p: Unit, *, reads_complement: bool = False) -> Unit:
        """Solve h(v given u) = p for v and its complement.

        `reads_complement`: h reads the complement of v, so that v may round to 1.
        """
        solve = partial(_solve_conditional, reads_complement=reads_complement)
        z = self._pointwise(solve, u.value, u.complement, p.value, p.complement)
        return Unit(jax.nn.sigmoid(z), jax.nn.sigmoid(-z))

    def _pointwise(self, function: Callable[..., Any], *arguments: ArrayLike) -> jax.Array:
        """Map function(copula, *scalars) over the broadcast of arguments and parameters."""
        leaves, structure = jax.tree.flatten(self)
        arrays = map(jnp.asarray, arguments)
        # Integers and booleans become floats for derivatives; times 1.0, the precision stays that of the others.
        arguments = tuple(x if jnp.issubdtype(x.dtype, jnp.inexact) else x * 1.0 for x in arrays)

        def single(*values: jax.Array) -> jax.Array:
            copula = jax.tree.unflatten(structure, values[len(arguments) :])
            return function(copula, *values[: len(arguments)])

        return jnp.vectorize(single)(*arguments, *leaves) if leaves or arguments else function(self)


def _register(cls, names: tuple[str, ...]) -> None:
    """Register a class as a pytree; unflattening skips `__init__`, since jax also passes tracers and placeholders."""

    def flatten_with_keys(member: Any) -> tuple[tuple[tuple[Any, Any], ...], None]:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(member, name)) for name in names), None

    def unflatten(_: None, leaves: Iterable[Any]) -> Any:
        member = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(member, name, leaf)
        return member

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)


class TailDependence(NamedTuple):
    """Tail dependence coefficients: limiting probabilities that both margins are extreme, given that a margin is."""

    lower: jax.Array
    """λ_L, the lower tail."""
    upper: jax.Array
    """λ_U, the upper tail."""


def finite_ends(support: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a support; the farthest value that a fit by likelihood reaches replaces an infinite end.

    Beyond this value, rounding hides any stronger dependence.

    >>> finite_ends((1.0, float("inf"))), finite_ends((-1.0, 1.0)), finite_ends((-float("inf"), float("inf")))
    ((1.0, 301.0), (-1.0, 1.0), (-300.0, 300.0))
    """
    low, high = support
    anchor = low if np.isfinite(low) else high if np.isfinite(high) else 0.0
    lowest, highest = anchor - FARTHEST_PARAMETER, anchor + FARTHEST_PARAMETER
    return low if np.isfinite(low) else lowest, high if np.isfinite(high) else highest


def no_tail_dependence(self: Copula) -> TailDependence:
    """Return λ_L = λ_U = 0."""
    zero = jnp.zeros_like(jnp.asarray(jax.tree.leaves(self)[0]))
    return TailDependence(zero, zero)


def clip_unit(u: ArrayLike) -> jax.Array:
    """Clip u to [0, 1]; the slope at the ends is 1, where that of `jnp.clip` is ½.

    >>> clip_unit(np.array([-0.1, 0.5, 1.1])).tolist()
    [0.0, 0.5, 1.0]
    """
    u = as_floats(u)
    return jnp.where(u < 0, 0.0, jnp.where(u > 1, 1.0, u))


def is_outside_square(u: ArrayLike, v: ArrayLike) -> jax.Array:
    """Return whether (u, v) lies outside the unit square; False for NaN.

    >>> is_outside_square(np.array([-0.1, 0.0, 1.0, 1.1]), 0.5).tolist()
    [True, False, False, True]
    """
    u, v = jnp.asarray(u), jnp.asarray(v)
    return (u < 0) | (u > 1) | (v < 0) | (v > 1)


def gauss_nodes() -> tuple[jax.Array, jax.Array]:
    """Return Gauss–Legendre nodes and weights on (0, 1), crowded towards the ends by t²(3 − 2t): (48,) each."""
    nodes, weights = np.polynomial.legendre.leggauss(48)
    t = (nodes + 1) / 2
    return jnp.asarray(t * t * (3 - 2 * t)), jnp.asarray(weights / 2 * 6 * t * (1 - t))


def tau_by_quadrature(copula: Copula) -> jax.Array:
    """Compute 4 E[C(U, V)] − 1 of one copula, by Gauss–Legendre quadrature over u and p = h(V given u).

    >>> from rcjax.copulas import Gumbel
    >>> round(float(tau_by_quadrature(Gumbel(2.0))), 4)
    0.5
    """
    node, weight = gauss_nodes()  # V varies fastest with u and p towards the ends
    u, p = jnp.meshgrid(node, node, indexing="ij")
    return 4 * weight @ copula.cdf(u, copula.inverse_conditional(u, p)) @ weight - 1


def _defaults(cls: type[Any]) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(cls)}


def _solve_conditional(
    copula: Any, u: jax.Array, above_u: jax.Array, p: jax.Array, above_p: jax.Array, *, reads_complement: bool
) -> jax.Array:
    """Solve h(v given u) = p for z = log(v / (1 − v)).

    Newton's method compares log(h / (1 − h)) with log(p / (1 − p)): both ends of most families are lines in z. The
    implicit gradient is that of h itself, whose slopes are finite.
    """
    info = jnp.finfo(p.dtype)
    least = float(np.sqrt(info.tiny))
    end = -float(np.log(least))
    high = end if reads_complement else -float(np.log(info.epsneg))

    def conditional(z: jax.Array) -> Unit:
        return copula.two_sided_conditional(Unit(u, above_u), Unit(jax.nn.sigmoid(z), jax.nn.sigmoid(-z)))

    def excess(z: jax.Array) -> jax.Array:
        h = conditional(z)
        return jnp.where(p < 0.5, h.value - p, above_p - h.complement)

    def odds(z: jax.Array) -> jax.Array:
        h = conditional(z)
        return jnp.log(jnp.maximum(h.value, least) * above_p / (jnp.maximum(h.complement, least) * p))

    def solve(*_: Any) -> jax.Array:
        return bracketed_newton(odds, jnp.clip(jnp.log(p / above_p), -end, high), -end, high)

    return implicit_root(excess, solve, p.dtype)


def _match_tau(tau_of: Callable[..., Any], cls, goal: jax.Array) -> jax.Array:
    """Find the first parameter at which τ is `goal`, or the end of the support nearest to it.

    The search runs from the default towards the end at which τ approaches the goal. NaN there means that the family
    has overflowed, and the search turns back.
    """
    (low, high), default = cls.supports[cls.free[0]], _defaults(cls)[cls.free[0]]
    low, high, default = (jnp.asarray(end, goal.dtype) for end in (low, high, default))
    far = jnp.asarray(1e4, goal.dtype)
    ends = jnp.maximum(low, default - far), jnp.minimum(high, default + far)
    # One step off the default shows whether τ grows with the parameter.
    step = jnp.minimum(0.01, jnp.maximum(ends[1] - default, default - ends[0]) / 2)
    neighbour = jnp.where(ends[1] - default >= step, default + step, default - step)
    rising = (tau_of(neighbour) > tau_of(default)) == (neighbour > default)
    up = (goal > tau_of(default)) == rising
    end = jnp.where(up, ends[1], ends[0])

    def position(z: jax.Array) -> jax.Array:
        # From the default (z = 0) to the end (z = 1), in steps that grow with the distance.
        span = jnp.abs(end - default)
        return default + jnp.sign(end - default) * span * jnp.expm1(z * jnp.log1p(span)) / jnp.where(span > 0, span, 1)

    def excess(z: jax.Array) -> jax.Array:
        gap = jnp.where(up == rising, 1.0, -1.0) * (tau_of(position(z)) - goal)
        return jnp.where(jnp.isnan(gap), 1.0, gap)

    z = implicit_root(excess, bisection(0.0, 1.0, goal.dtype), goal.dtype)
    inside = jnp.clip(position(z), low, high)
    # A goal out of reach gets the end of the support, without a gradient.
    return jnp.where(z < 1 - 4 * jnp.finfo(goal.dtype).eps, inside, lax.stop_gradient(inside))


class Exchangeable(Copula):
    """Base class of families given by a cdf with C(u, v) = C(v, u); conditionals are clipped to [0, 1]."""

    exchangeable: ClassVar[bool] = True

    def conditional(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return h(v given u) = ∂C/∂u, clipped to [0, 1] against rounding."""
        return clip_unit(super().conditional(u, v))

    def conditional_on_v(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return ∂C/∂v."""
        return self.conditional(v, u)


class ClosedForm(Copula):
    """A copula whose closed forms take each probability with its complement.

    A family defines `two_sided_cdf`, `two_sided_conditional` and `two_sided_log_density`. It may define a faster
    `two_sided_inverse`. A family that is not exchangeable must set `exchangeable = False` and define
    `two_sided_conditional_on_v`; otherwise its likelihoods are wrong, which `rcjax.testing.check_copula` finds.

    Calling all five at a point is cheap: compilation removes unused results.
    """

    exchangeable: ClassVar[bool] = True

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return C(u, v) = P(U ≤ u, V ≤ v)."""
        below = clip_unit(self.lower_cdf(unit(u), unit(v)))  # against rounding
        return jnp.where(_below_0(u) | _below_0(v), 0.0, below)

    def conditional(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return h(v given u) = ∂C/∂u = P(V ≤ v | U = u)."""
        return jnp.where(_below_0(v), 0.0, self.two_sided_conditional(unit(u), unit(v)).value)

    def conditional_on_v(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return ∂C/∂v = P(U ≤ u | V = v)."""
        return jnp.where(_below_0(u), 0.0, self.two_sided_conditional_on_v(unit(u), unit(v)).value)

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return log c(u, v) = log ∂²C/∂u∂v; −∞ outside the unit square."""
        inside = self.two_sided_log_density(unit(u), unit(v))
        return jnp.where(is_outside_square(u, v), -jnp.inf, inside)

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """Solve h(v given u) = p for v, clipped to [0, 1] against rounding."""
        return clip_unit(self.two_sided_inverse(unit(u), unit(p)).value)

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """Return C(u, v) alone."""
        return self.two_sided_cdf(u, v)[0]

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """Return ∂C/∂v and its complement."""
        return self.two_sided_conditional(v, u)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve h(v given u) = p for v and its complement, by Newton's method on the scale of log(v / (1 − v))."""
        return self._inverse(u, p, reads_complement=True)


class RadiallySymmetric(ClosedForm):
    """Base class of families that are their own survival copulas: `lower_cdf` gives the cdf at both corners."""

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """Return C(u, v) alone."""
        raise TypeError(f"{type(self).__name__} defines no lower_cdf(self, u, v)")

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C(u, v) and S(u, v) = C(1 − u, 1 − v)."""
        below, above = self.lower_cdf(*stacked_with_flips(u, v, *jax.tree.leaves(self)))
        return below, above


def _below_0(u: ArrayLike) -> jax.Array:
    return jnp.asarray(u) < 0  # `unit` clips values above 1


class Rotation(ClosedForm):
    """A copula turned by 90, 180 or 270 degrees: the law of (1 − U, V), (1 − U, 1 − V) or (U, 1 − V).

    The class statement names the family, and the rotation has its parameters. 180 degrees is the survival copula.

    >>> from rcjax.copulas import Clayton
    >>> class NegativeClayton(Rotation, family=Clayton, degrees=90):
    ...     pass
    >>> float(NegativeClayton(2.0).tau())
    -0.5
    """

    _family: ClassVar[type[Copula]]
    _degrees: ClassVar[int]

    def __init_subclass__(cls, *, family: type[Copula], degrees: int, **kwargs: Any) -> None:
        if degrees not in (90, 180, 270):
            raise ValueError(f"degrees is {degrees}; a copula turns by 90, 180 or 270")
        cls._family, cls._degrees = family, degrees
        cls.exchangeable = degrees == 180 and family.exchangeable
        fields = dataclasses.fields(family)  # pyright: ignore[reportArgumentType]
        cls.__annotations__ = {field.name: field.type for field in fields} | inspect.get_annotations(cls)
        for field in fields:
            if field.name not in vars(cls):
                setattr(cls, field.name, dataclasses.field(default=field.default, metadata=field.metadata))
        super().__init_subclass__(**kwargs)

    @property
    def _unturned(self) -> Copula:
        return jax.tree.unflatten(jax.tree.structure(self._family()), jax.tree.leaves(self))

    def with_score(self, u: Unit) -> Unit:
        """Prepare u as the family does."""
        return self._unturned.with_score(u)

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return (P(U ≤ u, V ≤ v), P(U > u, V > v))."""
        below, above = self._unturned.two_sided_cdf(*self._turn(u, v))
        if self._degrees == 180:
            return above, below
        if self._degrees == 270:
            u, v = v, u
        lower = _smaller_difference(v.value, below, u.value, above)
        return lower, _smaller_difference(u.complement, below, v.complement, above)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h(v given u) and its complement."""
        h = self._unturned.two_sided_conditional(*self._turn(u, v))
        return h if self._degrees == 90 else h.flipped

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """Return ∂C/∂v and its complement."""
        h = self._unturned.two_sided_conditional_on_v(*self._turn(u, v))
        return h if self._degrees == 270 else h.flipped

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c(u, v)."""
        return self._unturned.two_sided_log_density(*self._turn(u, v))

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve h(v given u) = p for v and its complement."""
        v = self._unturned.two_sided_inverse(*self._turn(u, p))
        return v if self._degrees == 90 else v.flipped

    def spearman(self) -> jax.Array:
        """Return Spearman's ρ of the family, negated for 90 and 270 degrees."""
        return self._unturned.spearman() if self._degrees == 180 else -self._unturned.spearman()

    def tail_dependence(self) -> TailDependence:
        """Return the family's coefficients, exchanged, for 180 degrees; numerical ones for the other rotations."""
        if self._degrees != 180:
            return super().tail_dependence()
        lower, upper = self._unturned.tail_dependence()
        return TailDependence(upper, lower)

    def tau(self) -> jax.Array:
        """Return Kendall's τ of the family, negated for 90 and 270 degrees."""
        return self._unturned.tau() if self._degrees == 180 else -self._unturned.tau()

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Rotate the family's `from_tau` of τ, or of −τ for 90 and 270 degrees."""
        tau = cls._clip_tau(tau)
        turned = cls._family.from_tau(tau if cls._degrees == 180 else -tau)
        return jax.tree.unflatten(jax.tree.structure(cls()), jax.tree.leaves(turned))

    def _turn(self, u: Unit, v: Unit) -> tuple[Unit, Unit]:
        return u.flipped if self._degrees < 270 else u, v.flipped if self._degrees > 90 else v


def _smaller_difference(total: jax.Array, part: jax.Array, other_total: jax.Array, other_part: jax.Array) -> jax.Array:
    """Return total − part = other_total − other_part, at least 0; the smaller total rounds least."""
    difference = jnp.where(total <= other_total, total - part, other_total - other_part)
    return difference + lax.stop_gradient(jnp.maximum(-difference, 0.0))
