"""Quadrature nodes in u-space, and on them the error and cost of a cascade as functions of its thresholds.

Each model has a grid over u = F(φ) ∈ [0, 1]: a cell for each point mass, and between masses panels of Gauss–Legendre
nodes. Panels are dense where the quantile function or the copula changes fast: towards both ends, and around the
components of a mixture. Each atom separates two panels. If a margin has atoms, the cell of an atom, usually of mass 0,
follows every panel.

Partial sums of the Gauss weights divide a panel into cells, one around each node. A function known by its integrals
over the cells, such as a conditional density, then becomes a polynomial with these integrals. A threshold inside a
panel weights the nodes by the integrals of their polynomials.

Let u_j = F_j(φ_j). The queries that reach model j have a density a_j over u; the first model's is 1. Model i answers if
u > u_i, and defers the rest to j:

    a_j(v) = ∫₀^{u_i} c_ij(u, v) a_i(u) du
    P(correct) = Σ_j ∫_{u_j}^1 Q_j(v) a_j(v) dv        E[cost] = Σ_j cost_j ∫₀¹ a_j

On the nodes of `QuadratureGrid` each step of the cascade is a product of a vector and a matrix. Section 4.3 of
Zellinger & Thomson (2025) has the same objective with a shorter memory (their eq. 5 and proposition 2).
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike
from numpy.polynomial import legendre

from rcjax._core.batching import take_entries
from rcjax._core.numerics import bisection, divide, implicit_root
from rcjax.copulas import Copula
from rcjax.model.marginals import Marginal, Probes, lay_out_probes, mean_below, quantile_and_components
from rcjax.solving.frontier.points import LossTerms

#: Panels per model and Gauss nodes per panel.
PANELS, ORDER = 17, 8

#: Probabilities at which log-odds are cut off, of the distribution and of its components: panels crowd no more there.
_CLOSEST, _CLOSEST_COMPONENT = 1e-4, 1e-3
_MIN_WIDTH = 1e-3  # least width of a panel, as a share of an even panel
_TRIALS = 16  # places that are tried for each edge of a panel
_OFF_CENTRE = 1e-4  # penalty in steepness per place away from the middle


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuadratureGrid:
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
    def smooth_range(self) -> tuple[jax.Array, jax.Array]:
        """(lowest, highest) rank between the masses at the ends, w_min and 1 − w_max."""
        return self.starts[..., 0], self.ends[..., -1]

    @property
    def mass_indices(self) -> np.ndarray:
        """(M,) numbers of the cells of point masses among the nodes."""
        panels, nodes = self.starts.shape[-1], self.u.shape[-1]
        step = (nodes - 1) // panels  # ORDER without atoms, ORDER + 1 with atoms
        return np.array([0, nodes - 1]) if step == ORDER else np.arange(0, nodes, step)

    def weights_below(self, u: jax.Array) -> jax.Array:
        """Return the part of each node's weight in [0, u], such that Σ below · f(nodes) = ∫₀ᵘ f: (G,).

        It is exact for polynomials up to degree `ORDER` − 1 in each panel, and differentiable in u.
        """
        count = self.starts.shape[0]
        cut = jnp.clip(jnp.searchsorted(self.starts, u, side="right", method="compare_all") - 1, 0, count - 1)
        start, end = self.starts[cut], self.ends[cut]
        position = jnp.clip(divide(u - start, end - start, 0.5), 0.0, 1.0)
        # Without the barrier XLA recomputes the polynomials for every node.
        integrals = lax.optimization_barrier(_legendre_integrals(2 * position - 1))
        inside = integrals @ jnp.asarray(_INTERPOLATION, position.dtype) * (end - start)
        full, panel = self.panel_values(self.weight), jnp.arange(count)[:, None]
        smooth = jnp.where(panel < cut, full, jnp.where(panel == cut, inside, 0.0))
        mass = self.mass_indices
        left, right = self.edges[mass], self.edges[mass + 1]
        return join_nodes(jnp.clip(u - left, 0.0, right - left), smooth)

    def panel_values(self, values: jax.Array) -> jax.Array:
        """Select values within panels from values (…, G) at the nodes: (…, P, ORDER)."""
        blocks = values[..., 1:-1] if len(self.mass_indices) == 2 else values[..., 1:]
        return blocks.reshape(*blocks.shape[:-1], self.starts.shape[-1], -1)[..., :ORDER]

    def interpolation_weights(self, u: jax.Array) -> jax.Array:
        """Return weights that interpolate a function from the nodes to u: (G,)."""
        return jax.jvp(self.weights_below, (u,), (jnp.ones_like(u),))[1]

    def density(self, cumulative: jax.Array) -> jax.Array:
        """Return the density at the nodes of a distribution given by its cdf on the edges (…, G + 1): (…, G).

        Within a point mass the density is averaged: a rank within ties carries no information.
        """
        cells = jnp.diff(cumulative)
        masses = divide(cells, jnp.diff(self.edges))
        values = self.panel_values(cells) @ jnp.asarray(_RECONSTRUCTION, cells.dtype)
        inner = divide(values, (self.ends - self.starts)[:, None])
        return join_nodes(masses[..., self.mass_indices], inner)


def join_nodes(masses: jax.Array, panels: jax.Array) -> jax.Array:
    """Join values at masses (…, M) and within panels (…, P, ORDER) to values at the nodes: (…, G).

    Masses are at both ends (M = 2), or before, between and behind all panels (M = P + 1).
    """
    if masses.shape[-1] == 2 and panels.shape[-2] > 1:
        flat = panels.reshape(*panels.shape[:-2], -1)
        return jnp.concatenate([masses[..., :1], flat, masses[..., 1:]], axis=-1)
    blocks = jnp.concatenate([panels, masses[..., 1:, None]], axis=-1)
    return jnp.concatenate([masses[..., :1], blocks.reshape(*blocks.shape[:-2], -1)], axis=-1)


@partial(jax.jit, static_argnames="panels")
def build_grid(marginal: Marginal, panels: int = PANELS) -> QuadratureGrid:
    """Build the grid of one marginal, differentiable in its parameters; `vmap` it over models.

    It has `panels` panels, and another panel for every atom.
    """
    probes = lay_out_probes(lax.stop_gradient(marginal))
    z_panels, between, value = _insert_atoms(marginal, _panel_edges(probes, panels))
    width = jnp.diff(z_panels)[:, None]
    z = z_panels[:-1, None] + width * _NODES.astype(width.dtype)
    z_edges = z_panels[:-1, None] + width * _CELLS[:-1].astype(width.dtype)
    probabilities = jnp.concatenate([z.reshape(-1), z_panels])
    x, components = quantile_and_components(marginal, probabilities, probes)
    confidence = marginal.unscale(x)
    count = z.size
    means = mean_below(marginal, x[count:], components[count:])
    inner = _exact_means(marginal, confidence[:count], x[count:], means, z_panels)
    bottom, top, smooth = marginal.mass_lowest, marginal.mass_highest, marginal.smooth_mass
    before = (bottom + jnp.concatenate([jnp.zeros(1, bottom.dtype), jnp.cumsum(between)]))[:, None]  # the masses behind
    starts, ends = (jnp.squeeze(before + smooth * edge[:, None], 1) for edge in (z_panels[:-1], z_panels[1:]))
    behind = ends[: between.shape[0]]
    values = jnp.where(between > 0, value, confidence[count + 1 :][: between.shape[0]])

    def nodes(first: jax.Array, middle: jax.Array, last: jax.Array, inner: jax.Array) -> jax.Array:
        return join_nodes(jnp.concatenate([first[None], middle, last[None]]), inner)

    edges = nodes(jnp.zeros_like(top), behind, 1 - top, before + smooth * z_edges)
    return QuadratureGrid(
        u=nodes(bottom / 2, behind + between / 2, 1 - top / 2, before + smooth * z),
        weight=nodes(bottom, between, top, smooth * width * _WEIGHTS.astype(width.dtype)),
        quantile=nodes(marginal.lowest, values, marginal.highest, inner.reshape(z.shape)),
        edges=jnp.append(edges, 1.0),
        starts=starts,
        ends=ends,
    )


def _insert_atoms(marginal: Marginal, edges: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Insert the atoms into the edges of panels.

    Returns (edges of the panels in z, masses between panels, values of these masses); without atoms, masses and values
    are empty.
    """
    edges, atoms = lax.stop_gradient(edges), marginal.atoms
    if atoms is None:
        return edges, jnp.zeros(0, edges.dtype), jnp.zeros(0, edges.dtype)
    x = divide(atoms.value - marginal.lowest, marginal.highest - marginal.lowest, 1.0)
    z = lax.stop_gradient(jnp.clip(marginal.smooth_cdf(jnp.clip(x, 0.0, 1.0)), 0.0, 1.0))
    # Among equal edges, the first stays first and the last stays last.
    before, last = jnp.zeros_like(edges[:-1]), jnp.zeros_like(edges[-1:])
    all_edges = jnp.concatenate([edges[:-1], z, edges[-1:]])
    order = jnp.argsort(all_edges, stable=True)[1:-1]
    mass, value = (jnp.concatenate([before, values, last])[order] for values in (atoms.mass, atoms.value))
    return jnp.sort(all_edges), mass, value


def _exact_means(
    marginal: Marginal, confidence: jax.Array, ends: jax.Array, means: jax.Array, z_panels: jax.Array
) -> jax.Array:
    """Shift the quantiles at the nodes of each panel, so that the quadrature of Q over the panel is exact: (P·ORDER,).

    `confidence` (P·ORDER,) are the quantiles. At the edges of the panels, (P + 1,) each, `ends` are on the scale of G's
    argument, `means` are ∫ t dG up to the edge, and `z_panels` are G.
    """
    below = marginal.lowest * z_panels + (marginal.highest - marginal.lowest) * means
    panels = confidence.reshape(-1, ORDER)
    middle = marginal.unscale((ends[1:] + ends[:-1]) / 2)
    mean = divide(jnp.diff(below), jnp.diff(z_panels), middle)
    return (panels + (mean - panels @ _WEIGHTS.astype(ends.dtype))[:, None]).reshape(-1)


def _panel_edges(probes: Probes, panels: int) -> jax.Array:
    """Place the edges of the panels in z = G(x), from 0 to 1, evenly on a mean of several scales: (panels + 1,).

    The scales are the confidence, the cdfs of the components, and the log-odds of z and of these cdfs. A function that
    varies fast in u varies slowly on one of these scales, even in a component's tails in the middle of the range.
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
    precedence = 1 - _OFF_CENTRE * np.abs(np.arange(_TRIALS) - half).astype(z.dtype)
    best = jnp.argmax(steepness[half:-half].reshape(panels - 1, _TRIALS) * precedence, axis=1)
    cell = half + _TRIALS * jnp.arange(panels - 1) + best
    edges = jnp.pad((fine_z[cell] + fine_z[cell + 1]) / 2, 1, constant_values=(0.0, 1.0))
    return (1 - _MIN_WIDTH) * edges + _MIN_WIDTH * jnp.linspace(0.0, 1.0, panels + 1, dtype=z.dtype)


def _legendre_integrals(x: jax.Array) -> jax.Array:
    """Return ∫₋₁ˣ of the Legendre polynomials of degree 0 … ORDER − 1: (…, ORDER)."""
    values = _legendre(x)
    rises = (values[..., 2:] - values[..., :-2]) / (2 * np.arange(1, ORDER) + 1)
    return jnp.concatenate([x[..., None] + 1, rises], axis=-1)


@jax.custom_jvp
def _legendre(x: jax.Array) -> jax.Array:
    """Evaluate the Legendre polynomials of degree 0 … ORDER: (…, ORDER + 1).

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
    """Compute constants of the panel [0, 1]: nodes, weights, cell edges, interpolation and reconstruction matrices."""
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuadratureTables:
    """A fitted model on quadrature nodes, for the objective and the solvers."""

    marginals: Marginal  # leading axis k
    grid: QuadratureGrid  # leading axis k
    left: jax.Array  # (P,) model i of each pair, in rising order
    right: jax.Array  # (P,) model j > i of each pair
    kernel: jax.Array  # (P, G, G) density at model j's nodes given model i's node
    cost: jax.Array  # (k,) money per answer


def build_tables(
    marginals: Marginal, copulas: Copula, cost: jax.Array, left: Any, right: Any, panels: int = PANELS
) -> QuadratureTables:
    """Build the grids of all models, and the transition kernels of pairs of models.

    Args:
        marginals: (k,) marginals of the models.
        copulas: (P,) copulas of the pairs.
        cost: (k,) money per answer.
        left, right: (P,) positions of each pair's models.
        panels: panels of each grid.
    """
    grid = jax.vmap(partial(build_grid, panels=panels))(marginals)
    left, right = jnp.asarray(left, int), jnp.asarray(right, int)
    kernel = jax.vmap(transition_kernel)(copulas, take_entries(grid, left), take_entries(grid, right))
    return QuadratureTables(marginals, grid, left, right, kernel, cost)


def transition_kernel(copula: Copula, source: QuadratureGrid, target: QuadratureGrid) -> jax.Array:
    """Return the density at the target's nodes given the source's node: (G, G).

    The density follows from the conditional cdf h(v given u) on the edges of the target's cells, and rows integrate to
    1 with the target's weights. Given a point mass (a, b] of the source, h is averaged over the mass, exactly:
    (C(b, v) − C(a, v)) / (b − a).
    """
    v, masses = target.edges[1:-1], source.mass_indices
    left, right = source.edges[masses][:, None], source.edges[masses + 1][:, None]
    rows = copula.conditional(source.u[:, None], v)
    below = copula.cdf(jnp.concatenate([right[:-1], left[1:]]), v)
    up_to, before = below[: len(masses) - 1], below[len(masses) - 1 :]
    above = jnp.concatenate([up_to, v[None]]) - jnp.concatenate([jnp.zeros_like(v)[None], before])
    means = divide(above, right - left, otherwise=rows[masses])
    if len(masses) == 2:
        cumulative = jnp.concatenate([means[:1], rows[1:-1], means[1:]])
    else:
        cumulative = rows.at[masses].set(means, unique_indices=True, indices_are_sorted=True)
    return target.density(jnp.pad(cumulative, ((0, 0), (1, 1)), constant_values=((0, 0), (0.0, 1.0))))


def arrival_densities(tables: QuadratureTables, first: jax.Array, deferred: jax.Array) -> jax.Array:
    """Compute the density a_j of the queries that reach each model, at the nodes of its grid: (k, G).

    `first` () is the model asked first, and `deferred` (P, G) the part of each node's weight that i defers to j.
    """

    def pass_on(density: jax.Array, link: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        i, j, part_of_weight, kernel = link
        return density.at[j].add((part_of_weight * density[i]) @ kernel), None

    starting = jnp.arange(tables.cost.shape[0]) == first
    # Added ones: under `jax.shard_map` the start varies over the same devices as the deferred weights.
    start = starting[:, None] * jnp.ones_like(deferred, shape=deferred.shape[-1:])
    return lax.scan(pass_on, start, (tables.left, tables.right, deferred, tables.kernel))[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outcome:
    """The expected outcome of a query under a cascade of k models, in the order of `models`.

    Path j of a query asks the cascade's models in turn up to model j, which answers or abstains. Arrays by model are
    therefore arrays by path too. They are JAX arrays, differentiable in the thresholds.
    """

    members: jax.Array
    """(k,) 1.0 for models of the cascade, else 0.0."""
    asked: jax.Array
    """(k,) share of the queries that each model is asked."""
    answered: jax.Array
    """(k,) share of the queries that each model answers."""
    wrong: jax.Array
    """(k,) share of the queries that each model answers wrongly; the error is the sum."""
    abstained_by: jax.Array
    """(k,) share of the queries on which each model abstains; zeros if no model may abstain."""
    answer_cost: jax.Array
    """(k,) expected money of one answer of each model."""
    smoothing: jax.Array
    """() width for `smoothed_quantile`, which `minimise` reduces to 0."""

    @property
    def error(self) -> jax.Array:
        """() probability of a wrong answer."""
        return self.wrong.sum(-1)

    @property
    def cost(self) -> jax.Array:
        """() expected money per query."""
        return (self.asked * self.answer_cost).sum(-1)

    @property
    def abstention(self) -> jax.Array:
        """() probability that a query gets no answer."""
        return self.abstained_by.sum(-1)

    @property
    def terms(self) -> LossTerms:
        """() expected terms of the loss: error, cost and abstention."""
        return LossTerms(self.error, self.cost, self.abstention)

    @property
    def taken(self) -> jax.Array:
        """(k,) probability of each path, that is, that a query ends with the path's last model."""
        return self.answered + self.abstained_by

    @property
    def path_cost(self) -> jax.Array:
        """(k,) expected money of each path; no query takes the paths of models outside the cascade."""
        return self.along(self.answer_cost)

    def along(self, values: ArrayLike) -> jax.Array:
        """Sum values of the models (k,), such as seconds, along each path: (k,).

        >>> import rcjax
        >>> expected = rcjax.solving.outcomes(rcjax.solve_frontier(rcjax.demo_model(), lam=[100.0, 1000.0]))
        >>> expected.along(jnp.array([1.0, 1.0, 1.0, 3.0, 9.0]))[1].tolist()
        [0.0, 0.0, 1.0, 4.0, 4.0]
        """
        return jnp.cumsum(self.members * jnp.asarray(values, self.members.dtype), axis=-1)


def outcome_of_cuts(
    tables: QuadratureTables,
    u: jax.Array,
    links: jax.Array,
    first: jax.Array,
    *,
    above: jax.Array | None = None,
    abstain_cuts: jax.Array | None = None,
) -> Outcome:
    """Evaluate one cascade, in which model i answers above its cut and defers the rest; `smoothing` is 0.

    `vmap` it over λ.

    Args:
        tables: quadrature of the model.
        u: (k,) cuts, on the scale of ranks; for the cascade's last model 0, or the rank up to which it abstains.
        links: (P,) whether i defers to j, for the pairs (i, j).
        first: () model asked first.
        above: (k,) E[Φ_j; Φ_j > φ_j] in closed form, in place of the quadrature of Q over the panel of the cut.
        abstain_cuts: (k,) ranks up to which models abstain, at most u; u for the last model. None: no abstentions.
    """
    grid, zeros = tables.grid, jnp.zeros_like(u)
    weights_below = jax.vmap(QuadratureGrid.weights_below)
    below = weights_below(grid, u)
    below_abstaining = jnp.zeros_like(below) if abstain_cuts is None else weights_below(grid, abstain_cuts)
    density = arrival_densities(tables, first, links[:, None] * (below - below_abstaining)[tables.left])
    answered = grid.weight - below
    wrong = (answered * (1 - grid.quantile) * density).sum(-1)
    if above is not None:
        missing = above - (answered * grid.quantile).sum(-1)
        at_cut = jax.vmap(lambda grid, cut, values: grid.interpolation_weights(cut) @ values)
        wrong -= missing * at_cut(grid, u, density)
    return Outcome(
        members=zeros.at[first].set(1.0).at[tables.right].max(links.astype(u.dtype)),
        asked=(grid.weight * density).sum(-1),
        answered=(answered * density).sum(-1),
        wrong=wrong,
        abstained_by=(below_abstaining * density).sum(-1),
        answer_cost=tables.cost,
        smoothing=jnp.zeros((), u.dtype),
    )


def smoothed_quantile(values: jax.Array, weights: jax.Array, level: float, width: jax.Array | float) -> jax.Array:
    """Return the quantile of a smoothed discrete distribution, differentiable in its values and weights.

    It solves Σ wᵢ σ((q − xᵢ)/h) = level for q, with σ the logistic function and h = width·(largest − least value). At
    width 0 it is the ordinary quantile, which jumps as weights change and has no useful gradient. An objective of
    `rcjax.solving.minimise` passes `outcome.smoothing`, which the solver reduces to 0.

    Args:
        values: (…, n) values, such as the seconds of each path, `outcome.along(seconds)`.
        weights: (…, n) probabilities of the values, such as `outcome.taken`.
        level: level of the quantile, in (0, 1).
        width: width of the smoothing, at least 0, as a share of the range of values.

    Raises ValueError for a level outside (0, 1).

    >>> seconds, taken = jnp.array([1.0, 3.0, 9.0]), jnp.array([0.6, 0.3, 0.1])
    >>> [round(float(smoothed_quantile(seconds, taken, 0.8, width)), 1) for width in (0.0, 0.01, 0.1)]
    [3.0, 3.1, 3.8]
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    dtype = jnp.result_type(float)
    values, weights = (jnp.asarray(array, dtype) for array in (values, weights))
    single = partial(_quantile_at_level, level=level)
    return jnp.vectorize(single, signature="(n),(n),()->()")(values, weights, jnp.asarray(width, dtype))


def _quantile_at_level(values: jax.Array, weights: jax.Array, width: jax.Array, level: float) -> jax.Array:
    shares = divide(weights, weights.sum())
    spread = width * (values.max() - values.min())
    h = jnp.where(spread > 0, spread, 1.0)
    shift = h * math.log(level / (1 - level))

    def excess(q: jax.Array) -> jax.Array:
        return shares @ special.expit((q - values) / h) - level

    low, high = jax.lax.stop_gradient((values.min() + shift, values.max() + shift))
    smooth = implicit_root(excess, bisection(low, high, values.dtype), values.dtype)
    order = jnp.argsort(values)
    reached = jnp.cumsum(shares[order]) >= level - 8 * values.shape[0] * jnp.finfo(values.dtype).eps
    return jnp.where(spread > 0, smooth, values[order][jnp.argmax(reached)])
