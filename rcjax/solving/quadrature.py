"""Quadrature in u-space, on which the objective is exact to a millionth: nodes, weights, and cuts by thresholds.

Each model has a grid over u = F(φ) ∈ [0, 1]: a cell for each point mass, and between masses panels of Gauss–Legendre
nodes. Panels are dense where the quantile function or the copula changes fast: towards both ends, and around the
components of a mixture. Each atom separates two panels. If a margin has atoms, every panel is followed by the cell of
an atom, usually of mass 0.

Partial sums of the Gauss weights divide a panel into cells, one around each node. A function known by its integrals
over the cells, such as a conditional cdf, then becomes a polynomial with these integrals. A threshold inside a panel
weights the nodes by the integrals of their polynomials.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.polynomial import legendre

from rcjax._core.numerics import divide
from rcjax.model.marginals import Marginal, Probes

#: Panels per model and Gauss nodes per panel.
PANELS, ORDER = 17, 8

_CLOSEST, _CLOSEST_COMPONENT = 1e-4, 1e-3

_MIN_WIDTH = 1e-3

_TRIALS = 16

_TIE = 1e-4  # penalty in steepness per place away from the middle


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Grid:
    """The nodes of one model in the order of u: mass at φ_min, panels of `ORDER` nodes, mass at φ_max.

    P panels have G = 2 + P·ORDER nodes. With atoms, a mass follows every panel: G = 1 + P·(ORDER + 1).
    """

    u: jax.Array  # (G,) rank of the node; the middle of a point mass
    weight: jax.Array  # (G,) probability of the cell, Σ = 1
    quantile: jax.Array  # (G,) Q(u), calibrated confidence at the node
    edges: jax.Array  # (G + 1,) edges of the cells in u, from 0 to 1
    starts: jax.Array  # (P,) start of each panel in u
    ends: jax.Array  # (P,) end of each panel in u

    @property
    def smooth(self) -> tuple[jax.Array, jax.Array]:
        """(lowest, highest) rank between the masses at the ends, w_min and 1 − w_max."""
        return self.starts[..., 0], self.ends[..., -1]

    @property
    def masses(self) -> np.ndarray:
        """Numbers of the cells of point masses among the nodes; (M,)."""
        panels, nodes = self.starts.shape[-1], self.u.shape[-1]
        step = (nodes - 1) // panels  # ORDER without atoms, ORDER + 1 with atoms
        return np.array([0, nodes - 1]) if step == ORDER else np.arange(0, nodes, step)

    def below(self, u: jax.Array) -> jax.Array:
        """Part of each node's weight in [0, u], such that Σ below · f(nodes) = ∫₀ᵘ f; (G,).

        It is exact for polynomials up to degree `ORDER` − 1 in each panel, and differentiable in u.
        """
        count = self.starts.shape[0]
        cut = jnp.clip(jnp.searchsorted(self.starts, u, side="right", method="compare_all") - 1, 0, count - 1)
        start, end = self.starts[cut], self.ends[cut]
        position = jnp.clip(divide(u - start, end - start, 0.5), 0.0, 1.0)
        # Without the barrier XLA recomputes the polynomials for every node.
        integrals = lax.optimization_barrier(_legendre_integrals(2 * position - 1))
        inside = integrals @ jnp.asarray(_INTERPOLATION, position.dtype) * (end - start)
        full, panel = self.within(self.weight), jnp.arange(count)[:, None]
        smooth = jnp.where(panel < cut, full, jnp.where(panel == cut, inside, 0.0))
        mass = self.masses
        left, right = self.edges[mass], self.edges[mass + 1]
        return joined(jnp.clip(u - left, 0.0, right - left), smooth)

    def within(self, values: jax.Array) -> jax.Array:
        """Values within panels, of values (…, G) at the nodes; (…, P, ORDER)."""
        blocks = values[..., 1:-1] if len(self.masses) == 2 else values[..., 1:]
        return blocks.reshape(*blocks.shape[:-1], self.starts.shape[-1], -1)[..., :ORDER]

    def at(self, u: jax.Array) -> jax.Array:
        """Weights that interpolate a function from the nodes to u; (G,)."""
        return jax.jvp(self.below, (u,), (jnp.ones_like(u),))[1]

    def density(self, cumulative: jax.Array) -> jax.Array:
        """Density at the nodes of a distribution given by its cdf on the edges (…, G + 1); (…, G).

        Within a point mass the density is averaged: a rank within ties carries no information.
        """
        cells = jnp.diff(cumulative)
        masses = divide(cells, jnp.diff(self.edges))
        within = self.within(cells)
        inner = divide(within @ jnp.asarray(_RECONSTRUCTION, cells.dtype), (self.ends - self.starts)[:, None])
        return joined(masses[..., self.masses], inner)


def joined(masses: jax.Array, panels: jax.Array) -> jax.Array:
    """Join values at masses (…, M) and within panels (…, P, ORDER) to values at the nodes; (…, G).

    Masses are at both ends (M = 2), or before, between and behind all panels (M = P + 1).
    """
    if masses.shape[-1] == 2 and panels.shape[-2] > 1:
        flat = panels.reshape(*panels.shape[:-2], -1)
        return jnp.concatenate([masses[..., :1], flat, masses[..., 1:]], axis=-1)
    blocks = jnp.concatenate([panels, masses[..., 1:, None]], axis=-1)
    return jnp.concatenate([masses[..., :1], blocks.reshape(*blocks.shape[:-2], -1)], axis=-1)


def build_grid(marginal: Marginal, panels: int | None = None) -> Grid:
    """Build the grid of one marginal, differentiable in its parameters; `vmap` it over models.

    It has `panels` panels, by default `PANELS`, and one more for every atom.
    """
    return _build_grid(marginal, panels or PANELS)


@partial(jax.jit, static_argnames="panels")
def _build_grid(marginal: Marginal, panels: int) -> Grid:
    probes = lax.stop_gradient(marginal).probes()
    z_panels, between, value = _parted_by_atoms(marginal, _panel_edges(probes, panels))
    width = jnp.diff(z_panels)[:, None]
    z = z_panels[:-1, None] + width * _NODES.astype(width.dtype)
    z_edges = z_panels[:-1, None] + width * _CELLS[:-1].astype(width.dtype)
    probabilities = jnp.concatenate([z.reshape(-1), z_panels])
    x, means = marginal.quantiles_and_means(probabilities, z.size, probes)
    confidence = marginal.lowest + (marginal.highest - marginal.lowest) * x
    count = z.size
    inner = _exact_means(marginal, confidence[:count], x[count:], means, z_panels)
    bottom, top, smooth = marginal.mass_lowest, marginal.mass_highest, marginal.smooth
    before = (bottom + jnp.concatenate([jnp.zeros(1, bottom.dtype), jnp.cumsum(between)]))[:, None]  # the masses behind
    starts, ends = (jnp.squeeze(before + smooth * edge[:, None], 1) for edge in (z_panels[:-1], z_panels[1:]))
    behind = ends[: between.shape[0]]
    values = jnp.where(between > 0, value, confidence[count + 1 :][: between.shape[0]])

    def nodes(first: jax.Array, middle: jax.Array, last: jax.Array, panels: jax.Array) -> jax.Array:
        return joined(jnp.concatenate([first[None], middle, last[None]]), panels)

    edges = nodes(jnp.zeros_like(top), behind, 1 - top, before + smooth * z_edges)
    return Grid(
        u=nodes(bottom / 2, behind + between / 2, 1 - top / 2, before + smooth * z),
        weight=nodes(bottom, between, top, smooth * width * _WEIGHTS.astype(width.dtype)),
        quantile=nodes(marginal.lowest, values, marginal.highest, inner.reshape(z.shape)),
        edges=jnp.append(edges, 1.0),
        starts=starts,
        ends=ends,
    )


def _parted_by_atoms(marginal: Marginal, edges: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Insert the atoms into the edges; (edges of the panels in z, masses between panels, their values).

    Without atoms, masses and values are empty.
    """
    edges, atoms = lax.stop_gradient(edges), marginal.atoms
    if atoms is None:
        return edges, jnp.zeros(0, edges.dtype), jnp.zeros(0, edges.dtype)
    x = divide(atoms.value - marginal.lowest, marginal.highest - marginal.lowest, 1.0)
    z = lax.stop_gradient(jnp.clip(marginal.held_cdf(jnp.clip(x, 0.0, 1.0)), 0.0, 1.0))
    # Among equal edges, the first stays first and the last one last.
    before, last = jnp.zeros_like(edges[:-1]), jnp.zeros_like(edges[-1:])
    all_edges = jnp.concatenate([edges[:-1], z, edges[-1:]])
    order = jnp.argsort(all_edges, stable=True)[1:-1]
    mass, value = (jnp.concatenate([before, values, last])[order] for values in (atoms.mass, atoms.value))
    return jnp.sort(all_edges), mass, value


def _exact_means(
    marginal: Marginal, confidence: jax.Array, ends: jax.Array, means: jax.Array, z_panels: jax.Array
) -> jax.Array:
    """Shift the quantiles at the nodes of each panel, so that the quadrature of Q over the panel is exact.

    `ends` are the ends of the panels on (0, 1), and `means` ∫ t dG of the smooth part up to each.
    """
    below = marginal.lowest * z_panels
    below += (marginal.highest - marginal.lowest) * means
    panels = confidence.reshape(-1, ORDER)
    middle = marginal.lowest + (marginal.highest - marginal.lowest) * (ends[1:] + ends[:-1]) / 2
    mean = divide(jnp.diff(below), jnp.diff(z_panels), middle)
    return (panels + (mean - panels @ _WEIGHTS.astype(ends.dtype))[:, None]).reshape(-1)


def _panel_edges(probes: Probes, panels: int) -> jax.Array:
    """Edges of the panels in z = G(x), from 0 to 1, evenly spaced on a mean of several scales; (panels + 1,).

    The scales are the confidence, the cdfs of the components, and the log-odds of z and of these cdfs. A function that
    varies fast in u varies slowly on one of them, even in a component's tails in the middle of the range.
    """

    def log_odds(z: jax.Array, closest: float) -> jax.Array:
        return (1 + jnp.log((z + closest) / (1 - z + closest)) / np.log((1 + closest) / closest)) / 2

    z = jnp.append(probes.z[:-1], 1.0)
    tails = log_odds(probes.components, _CLOSEST_COMPONENT).sum(-1)
    scale = 0.2 * log_odds(z, _CLOSEST) + 0.1 * (probes.x + probes.components.sum(-1)) + 0.25 * tails
    # Each edge may move by half a panel, to the steepest part of the quantile function: a jump between two separate
    # components then falls on an edge, and the panels beside it are smooth.
    goal = (jnp.arange(panels * _TRIALS + 1, dtype=z.dtype) / (panels * _TRIALS)) * scale[-1]
    right = jnp.clip(jnp.searchsorted(scale, goal, method="compare_all"), 1, scale.shape[0] - 1)
    low, high = jnp.moveaxis(jnp.stack([scale, z, probes.x])[:, jnp.stack([right - 1, right])], 1, 0)
    # Rounding may make the scale fall slightly.
    share = jnp.clip(divide(goal - low[0], high[0] - low[0]), 0.0, 1.0)
    fine_z, fine_x = low[1:] + share * (high[1:] - low[1:])
    steepness = divide(jnp.diff(fine_x), jnp.diff(fine_z), jnp.inf)
    # Between two probes steepness is equal up to rounding: the penalty prefers the middle.
    half = _TRIALS // 2
    precedence = 1 - _TIE * np.abs(np.arange(_TRIALS) - half).astype(z.dtype)
    best = jnp.argmax(steepness[half:-half].reshape(panels - 1, _TRIALS) * precedence, axis=1)
    cell = half + _TRIALS * jnp.arange(panels - 1) + best
    edges = jnp.pad((fine_z[cell] + fine_z[cell + 1]) / 2, 1, constant_values=(0.0, 1.0))
    return (1 - _MIN_WIDTH) * edges + _MIN_WIDTH * jnp.linspace(0.0, 1.0, panels + 1, dtype=z.dtype)


def _legendre_integrals(x: jax.Array) -> jax.Array:
    """∫₋₁ˣ of the Legendre polynomials of degree 0 … ORDER − 1; (…, ORDER)."""
    values = _legendre(x)
    rises = (values[..., 2:] - values[..., :-2]) / (2 * np.arange(1, ORDER) + 1)
    return jnp.concatenate([x[..., None] + 1, rises], axis=-1)


@jax.custom_jvp
def _legendre(x: jax.Array) -> jax.Array:
    """The Legendre polynomials of degree 0 … ORDER; (…, ORDER + 1).

    Derivatives are products with a matrix: differentiating the recurrence dominated the compilation of `solve`.
    """
    values = [jnp.ones_like(x), x]
    for c in range(1, ORDER):
        values.append(((2 * c + 1) * x * values[c] - c * values[c - 1]) / (c + 1))
    return jnp.stack(values, axis=-1)


@_legendre.defjvp
def _legendre_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    values = _legendre(*primals)
    return values, values @ jnp.asarray(_SLOPES, values.dtype) * tangents[0][..., None]


#: P′_n = Σ (2m + 1) P_m over m = n − 1, n − 3, …
_SLOPES = np.array([[(2 * m + 1) * (m < n and (n - m) % 2) for n in range(ORDER + 1)] for m in range(ORDER + 1)], float)


def _reference_panel() -> tuple[np.ndarray, ...]:
    """Constants of the panel [0, 1]: nodes, weights, cell edges, interpolation and reconstruction matrices."""
    nodes, weights = legendre.leggauss(ORDER)
    degrees = np.arange(ORDER)
    # Node m's polynomial is w_m Σ_c (c + ½) P_c(x_m) P_c(x); its integral follows from those of the P_c.
    interpolation = (weights * (degrees[:, None] + 0.5) * legendre.legvander(nodes, ORDER - 1).T) / 2
    cells = np.append(0.0, np.cumsum(weights / 2))
    cells[-1] = 1.0
    # Values at the nodes of the polynomial of degree ORDER − 1 with given integrals over the cells.
    monomials = np.eye(ORDER)
    integrals = np.stack([np.diff(legendre.legval(2 * cells - 1, legendre.legint(m))) / 2 for m in monomials], 1)
    reconstruction = legendre.legvander(nodes, ORDER - 1) @ np.linalg.inv(integrals)
    return (nodes + 1) / 2, weights / 2, cells, interpolation, reconstruction.T


_NODES, _WEIGHTS, _CELLS, _INTERPOLATION, _RECONSTRUCTION = _reference_panel()
