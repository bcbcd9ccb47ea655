"""Nodes in u-space on which the objective is exact to a millionth: where, how heavy, and how cut by a threshold.

Each model gets its own grid over u = F(φ) ∈ [0, 1]: one cell for each point mass, and between them panels with
Gauss–Legendre nodes. Panels crowd where the quantile function or the copula change fast: towards both ends, and
around either component of a mixture; each atom parts two panels, and where a margin has atoms, every panel has a cell
for one behind it, of mass 0 at most of them. Partial sums of the Gauss weights cut a panel into cells, one around each
node, so that a function known by its integrals over the cells, such as a conditional cdf, becomes a polynomial
through its integrals, and a threshold inside a panel weights its nodes by the integrals of their polynomials.
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

_TIE = 1e-4  # steepness that one place counts for


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Grid:
    """The nodes of one model, in the order of u: mass at φ_min, panels of `ORDER` nodes, mass at φ_max.

    With P panels, G = 2 + P·ORDER; with atoms every panel has the cell of a mass behind it: G = 1 + P·(ORDER + 1).
    """

    u: jax.Array  # (G,) position of the node; at a point mass, its middle
    weight: jax.Array  # (G,) probability of its cell, Σ = 1
    quantile: jax.Array  # (G,) Q(u), the calibrated confidence there
    edges: jax.Array  # (G + 1,) the cells' edges in u, from 0 to 1
    starts: jax.Array  # (P,) where the panels start in u
    ends: jax.Array  # (P,) and where they end

    @property
    def smooth(self) -> tuple[jax.Array, jax.Array]:
        """(lowest, highest) rank between the masses at the ends, w_min and 1 − w_max."""
        return self.starts[..., 0], self.ends[..., -1]

    @property
    def masses(self) -> np.ndarray:
        """(M,) the indices of the cells of point masses among the nodes."""
        panels, nodes = self.starts.shape[-1], self.u.shape[-1]
        step = (nodes - 1) // panels  # ORDER with masses at the ends alone, one more with one behind each panel
        return np.array([0, nodes - 1]) if step == ORDER else np.arange(0, nodes, step)

    def below(self, u: jax.Array) -> jax.Array:
        """(G,) the part of each node's weight that lies in [0, u], so that Σ below · f(nodes) = ∫₀ᵘ f.

        Exact for polynomials up to `ORDER` − 1 in each panel, and differentiable in u: the derivative interpolates.
        """
        count = self.starts.shape[0]
        cut = jnp.clip(jnp.searchsorted(self.starts, u, side="right", method="compare_all") - 1, 0, count - 1)
        start, end = self.starts[cut], self.ends[cut]
        position = jnp.clip(divide(u - start, end - start, 0.5), 0.0, 1.0)
        # Without the barrier XLA works the polynomials out anew for every node.
        integrals = lax.optimization_barrier(_legendre_integrals(2 * position - 1))
        inside = integrals @ jnp.asarray(_INTERPOLATION, position.dtype) * (end - start)
        whole, panel = self.within(self.weight), jnp.arange(count)[:, None]
        smooth = jnp.where(panel < cut, whole, jnp.where(panel == cut, inside, 0.0))
        mass = self.masses
        left, right = self.edges[mass], self.edges[mass + 1]
        return joined(jnp.clip(u - left, 0.0, right - left), smooth)

    def within(self, values: jax.Array) -> jax.Array:
        """(…, P, ORDER) what panels hold of values (…, G) at the nodes."""
        blocks = values[..., 1:-1] if len(self.masses) == 2 else values[..., 1:]
        return blocks.reshape(*blocks.shape[:-1], self.starts.shape[-1], -1)[..., :ORDER]

    def at(self, u: jax.Array) -> jax.Array:
        """(G,) weights that interpolate a function from its values at the nodes to u."""
        return jax.jvp(self.below, (u,), (jnp.ones_like(u),))[1]

    def density(self, cumulative: jax.Array) -> jax.Array:
        """(…, G) density at the nodes of a distribution given by its cdf on the cells' edges (…, G + 1).

        Inside a point mass the density is its mean: a rank within ties carries no information.
        """
        cells = jnp.diff(cumulative)
        masses = divide(cells, jnp.diff(self.edges))
        within = self.within(cells)
        inner = divide(within @ jnp.asarray(_RECONSTRUCTION, cells.dtype), (self.ends - self.starts)[:, None])
        return joined(masses[..., self.masses], inner)


def joined(masses: jax.Array, panels: jax.Array) -> jax.Array:
    """(…, G) values at the nodes, of those at masses (…, M) and within panels (…, P, ORDER).

    Masses are at both ends (M = 2), or before, between and behind all panels (M = P + 1).
    """
    if masses.shape[-1] == 2 and panels.shape[-2] > 1:
        flat = panels.reshape(*panels.shape[:-2], -1)
        return jnp.concatenate([masses[..., :1], flat, masses[..., 1:]], axis=-1)
    blocks = jnp.concatenate([panels, masses[..., 1:, None]], axis=-1)
    return jnp.concatenate([masses[..., :1], blocks.reshape(*blocks.shape[:-2], -1)], axis=-1)


def build_grid(marginal: Marginal, panels: int | None = None) -> Grid:
    """The grid of one marginal; `vmap` it over models. Differentiable in the marginal's parameters.

    Of so many panels, by default `PANELS`, and one more for every atom.
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
    """(edges of the panels in z, the mass between neighbouring panels, its value), the edges (…) with the atoms' among.

    Without atoms there are no masses between panels at all: both are empty.
    """
    edges, atoms = lax.stop_gradient(edges), marginal.atoms
    if atoms is None:
        return edges, jnp.zeros(0, edges.dtype), jnp.zeros(0, edges.dtype)
    x = divide(atoms.value - marginal.lowest, marginal.highest - marginal.lowest, 1.0)
    z = lax.stop_gradient(jnp.clip(marginal.held_cdf(jnp.clip(x, 0.0, 1.0)), 0.0, 1.0))
    # Of equal ones, the first edge stays first, and the last one last.
    before, last = jnp.zeros_like(edges[:-1]), jnp.zeros_like(edges[-1:])
    all_edges = jnp.concatenate([edges[:-1], z, edges[-1:]])
    order = jnp.argsort(all_edges, stable=True)[1:-1]
    mass, value = (jnp.concatenate([before, values, last])[order] for values in (atoms.mass, atoms.value))
    return jnp.sort(all_edges), mass, value


def _exact_means(
    marginal: Marginal, confidence: jax.Array, ends: jax.Array, means: jax.Array, z_panels: jax.Array
) -> jax.Array:
    """The quantiles at the nodes, moved together in each panel so that they integrate Q over it exactly.

    ends, means: where on (0, 1) the panels end, and ∫ t dG of the smooth part up to there.
    """
    below = marginal.lowest * z_panels
    below += (marginal.highest - marginal.lowest) * means
    panels = confidence.reshape(-1, ORDER)
    middle = marginal.lowest + (marginal.highest - marginal.lowest) * (ends[1:] + ends[:-1]) / 2
    mean = divide(jnp.diff(below), jnp.diff(z_panels), middle)
    return (panels + (mean - panels @ _WEIGHTS.astype(ends.dtype))[:, None]).reshape(-1)


def _panel_edges(probes: Probes, panels: int) -> jax.Array:
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
    # Between two probes steepness is equal apart from rounding, which must not choose: the middle has precedence.
    half = _TRIALS // 2
    precedence = 1 - _TIE * np.abs(np.arange(_TRIALS) - half).astype(z.dtype)
    best = jnp.argmax(steepness[half:-half].reshape(panels - 1, _TRIALS) * precedence, axis=1)
    cell = half + _TRIALS * jnp.arange(panels - 1) + best
    edges = jnp.pad((fine_z[cell] + fine_z[cell + 1]) / 2, 1, constant_values=(0.0, 1.0))
    return (1 - _MIN_WIDTH) * edges + _MIN_WIDTH * jnp.linspace(0.0, 1.0, panels + 1, dtype=z.dtype)


def _legendre_integrals(x: jax.Array) -> jax.Array:
    """(…, ORDER) ∫₋₁ˣ of the Legendre polynomials of degree 0 … ORDER − 1."""
    values = _legendre(x)
    rises = (values[..., 2:] - values[..., :-2]) / (2 * np.arange(1, ORDER) + 1)
    return jnp.concatenate([x[..., None] + 1, rises], axis=-1)


@jax.custom_jvp
def _legendre(x: jax.Array) -> jax.Array:
    """(…, ORDER + 1) the Legendre polynomials of degree 0 … ORDER.

    Each derivative is one product with a matrix: the recurrence, differentiated, was most of what compiled in `solve`.
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
