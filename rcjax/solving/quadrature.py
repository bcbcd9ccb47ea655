"""Nodes in u-space on which the objective is exact to a millionth: where, how heavy, and how cut by a threshold.

Each model gets its own grid over u = F(φ) ∈ [0, 1]: one cell for each point mass, and between them panels with
Gauss–Legendre nodes. Panels crowd where the quantile function or the copula change fast: towards both ends, and
around either component of the mixture. Partial sums of the Gauss weights cut a panel into cells, one around each
node, so that a function known by its integrals over the cells, such as a conditional cdf, becomes a polynomial
through its integrals, and a threshold inside a panel weights its nodes by the integrals of their polynomials.
"""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.polynomial import legendre

from rcjax._core.numerics import divide
from rcjax.model.marginals import Marginal, mixture_mean_below, mixture_quantile_and_components, probe_mixture

if TYPE_CHECKING:
    from rcjax.model.marginals import Probes

#: Panels per model and Gauss nodes per panel.
PANELS, ORDER = 17, 8


_CLOSEST, _CLOSEST_COMPONENT = 1e-4, 1e-3


_MIN_WIDTH = 1e-3


_TRIALS = 16


_TIE = 1e-4  # steepness that one place counts for


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Grid:
    """The nodes of one model, G = 2 + panels × order of them: mass at φ_min, panels, mass at φ_max."""

    u: jax.Array  # (G,) position of the node; at a point mass, its middle
    weight: jax.Array  # (G,) probability of its cell, Σ = 1
    quantile: jax.Array  # (G,) Q(u), the calibrated confidence there
    edges: jax.Array  # (G + 1,) the cells' edges in u, from 0 to 1
    panels: jax.Array  # (panels + 1,) the panels' edges in u, from w_min to 1 − w_max

    def below(self, u: jax.Array) -> jax.Array:
        """(G,) the part of each node's weight that lies in [0, u], so that Σ below · f(nodes) = ∫₀ᵘ f.

        Exact for polynomials up to `ORDER` − 1 in each panel, and differentiable in u: the derivative interpolates.
        """
        count = self.panels.shape[0] - 1
        cut = jnp.clip(jnp.searchsorted(self.panels, u, side="right", method="compare_all") - 1, 0, count - 1)
        start, end = self.panels[cut], self.panels[cut + 1]
        place = jnp.clip(divide(u - start, end - start, 0.5), 0.0, 1.0)
        # Without the barrier XLA works the polynomials out anew for every node.
        integrals = lax.optimization_barrier(_legendre_integrals(2 * place - 1))
        inside = integrals @ jnp.asarray(_INTERPOLATION, place.dtype) * (end - start)
        whole, panel = self.weight[1:-1].reshape(count, -1), jnp.arange(count)[:, None]
        smooth = jnp.where(panel < cut, whole, jnp.where(panel == cut, inside, 0.0)).reshape(-1)
        low = jnp.clip(u, 0.0, self.edges[1])
        high = jnp.clip(u - self.edges[-2], 0.0, self.edges[-1] - self.edges[-2])
        return jnp.concatenate([low[None], smooth, high[None]])

    def at(self, u: jax.Array) -> jax.Array:
        """(G,) weights that interpolate a function from its values at the nodes to u."""
        return jax.jvp(self.below, (u,), (jnp.ones_like(u),))[1]

    def density(self, cumulative: jax.Array) -> jax.Array:
        """(…, G) density at the nodes of a distribution given by its cdf on the cells' edges (…, G + 1).

        Inside a point mass the density is its mean: a rank within ties carries no information.
        """
        panels = self.panels.shape[0] - 1
        order = (self.u.shape[0] - 2) // panels
        cells = jnp.diff(cumulative)
        masses = divide(cells, jnp.diff(self.edges))
        within = cells[..., 1:-1].reshape(*cells.shape[:-1], panels, order)
        inner = divide(within @ jnp.asarray(_RECONSTRUCTION, cells.dtype), jnp.diff(self.panels)[:, None])
        inner = inner.reshape(*cells.shape[:-1], panels * order)
        return jnp.concatenate([masses[..., :1], inner, masses[..., -1:]], axis=-1)


def build_grid(marginal: Marginal, panels: int | None = None) -> Grid:
    """The grid of one marginal; `vmap` it over models. Differentiable in the marginal's parameters.

    Of so many panels, by default `PANELS`.
    """
    return _build_grid(marginal, panels or PANELS)


@partial(jax.jit, static_argnames="panels")
def _build_grid(marginal: Marginal, panels: int) -> Grid:
    z_panels = lax.stop_gradient(_panel_edges(probe_mixture(marginal), panels))
    width = jnp.diff(z_panels)[:, None]
    z = (z_panels[:-1, None] + width * _NODES.astype(width.dtype)).reshape(-1)
    z_edges = (z_panels[:-1, None] + width * _CELLS[:-1].astype(width.dtype)).reshape(-1)
    bottom, top = marginal.mass_lowest, marginal.mass_highest
    u = bottom + marginal.smooth * z
    inner_edges = jnp.append(bottom + marginal.smooth * z_edges, 1 - top)
    x, components = mixture_quantile_and_components(marginal, jnp.concatenate([z, z_panels]))
    confidence = marginal.lowest + (marginal.highest - marginal.lowest) * x
    count = z.shape[0]
    confidence = _exact_means(marginal, confidence[:count], x[count:], components[count:], z_panels)
    return Grid(
        u=jnp.concatenate([bottom[None] / 2, u, 1 - top[None] / 2]),
        weight=jnp.concatenate(
            [bottom[None], (marginal.smooth * width * _WEIGHTS.astype(width.dtype)).reshape(-1), top[None]]
        ),
        quantile=jnp.concatenate([marginal.lowest[None], confidence, marginal.highest[None]]),
        edges=jnp.pad(inner_edges, 1, constant_values=(0.0, 1.0)),
        panels=bottom + marginal.smooth * z_panels,
    )


def _exact_means(
    marginal: Marginal, confidence: jax.Array, ends: jax.Array, components: jax.Array, z_panels: jax.Array
) -> jax.Array:
    """The quantiles at the nodes, moved together in each panel so that they integrate Q over it exactly.

    ends, components: where on (0, 1) the panels end, and both components' cdfs there.
    """
    below = marginal.lowest * z_panels
    below += (marginal.highest - marginal.lowest) * mixture_mean_below(marginal, ends, components)
    panels = confidence.reshape(-1, ORDER)
    middle = marginal.lowest + (marginal.highest - marginal.lowest) * (ends[1:] + ends[:-1]) / 2
    mean = divide(jnp.diff(below), jnp.diff(z_panels), middle)
    return (panels + (mean - panels @ _WEIGHTS.astype(ends.dtype))[:, None]).reshape(-1)


def _panel_edges(probes: "Probes", panels: int) -> jax.Array:
    """(panels + 1,) edges in the probability z of the mixture, from 0 to 1, evenly spaced on a mean of scales.

    Confidence itself, the cdf of either component, and the log-odds of z and of these cdfs: whatever varies fast in
    u varies slowly on one of them, the tails of a component in the middle of the range included.
    """

    def log_odds(z: jax.Array, closest: float) -> jax.Array:
        return (1 + jnp.log((z + closest) / (1 - z + closest)) / np.log((1 + closest) / closest)) / 2

    z = jnp.append(probes.z[:-1], 1.0)
    tails = log_odds(probes.components, _CLOSEST_COMPONENT).sum(-1)
    scale = 0.2 * log_odds(z, _CLOSEST) + 0.1 * (probes.x + probes.components.sum(-1)) + 0.25 * tails
    # Each edge may move by half a panel, to where the quantile function is steepest: a jump between two separate
    # components falls on an edge, and the panels on both sides of it are smooth.
    goal = (jnp.arange(panels * _TRIALS + 1, dtype=z.dtype) / (panels * _TRIALS)) * scale[-1]
    right = jnp.clip(jnp.searchsorted(scale, goal, method="compare_all"), 1, scale.shape[0] - 1)
    low, high = jnp.moveaxis(jnp.stack([scale, z, probes.x])[:, jnp.stack([right - 1, right])], 1, 0)
    # The scale falls by a rounding error here and there.
    share = jnp.clip(divide(goal - low[0], high[0] - low[0]), 0.0, 1.0)
    fine_z, fine_x = low[1:] + share * (high[1:] - low[1:])
    steepness = divide(jnp.diff(fine_x), jnp.diff(fine_z), jnp.inf)
    # Between two probes the steepness is the same but for rounding, which must not choose: the middle has precedence.
    half = _TRIALS // 2
    precedence = 1 - _TIE * np.abs(np.arange(_TRIALS) - half).astype(z.dtype)
    best = jnp.argmax(steepness[half:-half].reshape(panels - 1, _TRIALS) * precedence, axis=1)
    cell = half + _TRIALS * jnp.arange(panels - 1) + best
    edges = jnp.pad((fine_z[cell] + fine_z[cell + 1]) / 2, 1, constant_values=(0.0, 1.0))
    return (1 - _MIN_WIDTH) * edges + _MIN_WIDTH * jnp.linspace(0.0, 1.0, panels + 1, dtype=z.dtype)


def _legendre_integrals(x: jax.Array) -> jax.Array:
    """(…, ORDER) ∫₋₁ˣ of the Legendre polynomials of degree 0 … ORDER − 1."""
    values = [jnp.ones_like(x), x]
    for c in range(1, ORDER):
        values.append(((2 * c + 1) * x * values[c] - c * values[c - 1]) / (c + 1))
    rises = [(values[c + 1] - values[c - 1]) / (2 * c + 1) for c in range(1, ORDER)]
    return jnp.stack([x + 1, *rises], axis=-1)


def _reference_panel() -> tuple[np.ndarray, ...]:
    """Constants of the panel [0, 1]: nodes, weights, cell edges, interpolation and reconstruction matrices."""
    nodes, weights = legendre.leggauss(ORDER)
    degrees = np.arange(ORDER)
    # Node m's polynomial is w_m Σ_c (c + ½) P_c(x_m) P_c(x), and its integral that of the P_c.
    interpolation = (weights * (degrees[:, None] + 0.5) * legendre.legvander(nodes, ORDER - 1).T) / 2
    cells = np.append(0.0, np.cumsum(weights / 2))
    cells[-1] = 1.0
    # The polynomial of degree ORDER − 1 whose integrals over the cells are given, at the nodes.
    monomials = np.eye(ORDER)
    integrals = np.stack([np.diff(legendre.legval(2 * cells - 1, legendre.legint(m))) / 2 for m in monomials], 1)
    reconstruction = legendre.legvander(nodes, ORDER - 1) @ np.linalg.inv(integrals)
    return (nodes + 1) / 2, weights / 2, cells, interpolation, reconstruction.T


_NODES, _WEIGHTS, _CELLS, _INTERPOLATION, _RECONSTRUCTION = _reference_panel()
