"""What a cascade does, path by path: the record that objectives of one's own are functions of."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.batching import part, stack
from rcjax._core.compilation import compiled, in_full
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.frontier.searches import check_cascade
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.solving.at_lambda import lay_out
from rcjax.solving.objective import Tables, flow, level_columns, missed
from rcjax.solving.translation import check_alike, stacked, translate


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("members", "asked", "answered", "wrong", "unanswered", "price", "smoothing"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is expected of a query under a cascade; k models, in the order of `models`.

    A cascade is a row of paths: path j asks its models one after the other up to model j, which answers or refuses. So
    what there is for each model is there for each path. Under M fitted models every array has a leading axis M, but
    for `smoothing`. Arrays of JAX's: differentiable in the thresholds.
    """

    members: jax.Array
    """(k,) 1.0 for the models of the cascade, else 0.0."""
    asked: jax.Array
    """(k,) share of the queries that each model is asked."""
    answered: jax.Array
    """(k,) share that each model answers."""
    wrong: jax.Array
    """(k,) share that each model answers wrongly; the error is their sum."""
    unanswered: jax.Array
    """(k,) share that gets no answer from each model; zeros where no model may refuse."""
    price: jax.Array
    """(k,) expected money of one answer of each model."""
    smoothing: jax.Array
    """() how wide `smooth_maximum` and `smooth_quantile` are to be; falls to 0 as `minimise` goes on."""

    @property
    def error(self) -> jax.Array:
        """() probability of a wrong answer."""
        return self.wrong.sum(-1)

    @property
    def cost(self) -> jax.Array:
        """() money per query."""
        return (self.asked * self.price).sum(-1)

    @property
    def refused(self) -> jax.Array:
        """() probability that a query gets no answer."""
        return self.unanswered.sum(-1)

    @property
    def taken(self) -> jax.Array:
        """(k,) probability that each path is taken: that the query ends with this model."""
        return self.answered + self.unanswered

    @property
    def path_cost(self) -> jax.Array:
        """(k,) expected money of each path; what is there of models outside the cascade, no query has."""
        return self.along(self.price)

    def along(self, values: ArrayLike) -> jax.Array:
        """(k,) sums of what each model takes (k,), such as seconds, along each path.

        >>> from rcjax import demo_model, solve_frontier
        >>> from rcjax.solving import outcomes
        >>> frontier = solve_frontier(demo_model(), lam=[1000.0], cascades=[("llama3.2-1b", "llama3.1-70b")])
        >>> outcomes(demo_model(), frontier).along(jnp.array([1.0, 1.0, 1.0, 3.0, 9.0])).tolist()
        [[1.0, 1.0, 1.0, 4.0, 4.0]]
        """
        return jnp.cumsum(self.members * jnp.asarray(values, self.members.dtype), axis=-1)


def outcome_of_cuts(
    tables: Tables,
    u: jax.Array,
    links: jax.Array,
    first: jax.Array,
    members: jax.Array,
    *,
    above: jax.Array | None = None,
    refused: jax.Array | None = None,
) -> Outcome:
    """What a cascade does, by its cuts, under one fitted model; `smoothing` is 0. Scalar in u, as `evaluate`.

    Args:
        tables, u, links, first, above, refused: as of `evaluate`.
        members: (k,) bool, its models.
    """
    flows = flow(tables, u, links, first, refused=refused)
    wrong = (flows.answered * (1 - tables.grid.quantile) * flows.density).sum(-1)
    if above is not None:
        wrong -= missed(tables, u, flows, above)
    nothing = jnp.zeros_like(u)
    return Outcome(
        members=members.astype(u.dtype),
        asked=(tables.grid.weight * flows.density).sum(-1),
        answered=(flows.answered * flows.density).sum(-1),
        wrong=wrong,
        unanswered=nothing if flows.refused is None else (flows.refused * flows.density).sum(-1),
        price=tables.cost,
        smoothing=jnp.zeros((), u.dtype),
    )


def outcome(
    model: CascadeModel,
    thresholds: ArrayLike,
    cascade: Sequence[str] | None = None,
    *,
    refusals: ArrayLike | None = None,
) -> Outcome:
    """What a cascade does at given thresholds, path by path: what `minimise` hands its objective.

    Pure: under `jit` and `vmap`, and differentiable, twice too, in the thresholds and in every array of the model.
    Leading axes are batched.

    Args:
        model: the fitted model, of k models.
        thresholds: (…, m) or (…, m − 1) or (…, k) calibrated confidences, as `error_and_cost` takes them.
        cascade: the names of its m models, in the order asked; by default all.
        refusals: (…, m) or (…, k), as `error_and_cost` takes them.

    Raises ValueError as `error_and_cost` does.

    >>> import jax, rcjax
    >>> model, pair = rcjax.demo_model(), ("llama3.2-1b", "llama3.1-70b")
    >>> expected = outcome(model, jnp.array([0.6]), pair)
    >>> error, cost = rcjax.solving.error_and_cost(model, jnp.array([0.6]), pair)
    >>> bool(abs(expected.error - error) < 1e-6), bool(abs(expected.answered.sum() - 1) < 1e-6)
    (True, True)
    """
    members = check_cascade(model.models, model.models if cascade is None else cascade)
    k, m, columns = len(model.models), len(members), np.array(members)
    cuts = level_columns("thresholds", thresholds, {m - 1: np.arange(m - 1), m: np.arange(m - 1), k: columns[:-1]}, m)
    thresholds = jnp.asarray(thresholds, model.cost.dtype)[..., cuts]
    shape = thresholds.shape[:-1]
    if refusals is not None:
        lowest = level_columns("refusals", refusals, {m: np.arange(m), k: columns}, m)
        refusals = jnp.asarray(refusals, model.cost.dtype)[..., lowest]
        shape = np.broadcast_shapes(shape, refusals.shape[:-1])
        refusals = jnp.zeros((*shape, k), refusals.dtype).at[..., columns].set(refusals).reshape(-1, k)
    levels = jnp.full((*shape, k), ALWAYS_ANSWER, thresholds.dtype).at[..., columns[:-1]].set(thresholds)
    # By position: no link of the cascade leads back.
    links = tuple(pairs(k).index(link) for link in itertools.pairwise(members))
    expected = _of_levels(model, levels.reshape(-1, k), refusals, members, links)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), expected)


@partial(jax.jit, static_argnames=("members", "links"))
@in_full
def _of_levels(
    model: CascadeModel,
    thresholds: jax.Array,
    refusals: jax.Array | None,
    members: tuple[int, ...],
    links: tuple[int, ...],
) -> Outcome:
    """(n, …) what a cascade does, by thresholds (n, k) and refusals (n, k) or None.

    Args:
        model: of k models.
        thresholds: those of models outside the cascade do not count.
        refusals: likewise.
        members: positions of its models.
        links: of each that asks another, the index of both among all pairs.
    """
    k, chosen = len(model.models), np.array(links, int)
    left, right = np.array(pairs(k), int).reshape(-1, 2)[chosen].T
    tables = lay_out(model.marginals, model.copulas, model.cost, (left, right, chosen))
    inside = jnp.isin(jnp.arange(k), np.array(members))

    def single(threshold: jax.Array, refusal: jax.Array | None) -> Outcome:
        refused = None if refusal is None else jax.vmap(Marginal.cdf)(model.marginals, refusal)
        threshold = threshold if refusal is None else jnp.maximum(threshold, refusal)
        u, _, above = jax.vmap(Marginal.profile)(model.marginals, threshold)
        every = jnp.ones(len(chosen), bool)
        return outcome_of_cuts(tables, u, every, jnp.asarray(members[0]), inside, above=above, refused=refused)

    return jax.vmap(single)(thresholds, refusals)


def outcomes(model: CascadeModel | Sequence[CascadeModel], frontier: Frontier) -> Outcome:
    """What the policies of a frontier do, path by path, under a fitted model or several: arrays (L, …), or (L, M, …).

    Thresholds are those of `frontier.model`; another fitted model is told the raw confidences that they cut. So what
    `minimise` takes as objective can be computed for any cascades, such as those of `solve_frontier`.

    Args:
        model: a fitted model, or a list of M fits of the same models.
        frontier: of cascades, L of them.

    Raises ValueError for adaptive policies, such that compare answers or pass on a share of some queries, and for
    models that differ.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> frontier = rcjax.solve_frontier(model, lam=[100.0, 1000.0])
    >>> outcome = outcomes(model, frontier)
    >>> outcome.error.shape, bool(abs(outcome.cost - frontier.cost).max() < 1e-9)
    ((2,), True)
    """
    models = listed(model)
    policies = frontier.policies.on_host()
    if policies.thresholds is None or policies.agreements is not None:
        raise ValueError("frontier must hold cascades with one threshold per model that do not compare answers")
    every = [frontier.model, *models]
    check_alike(every)
    left, right = np.array(pairs(len(frontier.models)), int).reshape(-1, 2).T
    chosen = left, right, np.arange(len(left))
    calibrators, marginals = stacked(every)
    fits = [(part(marginals, m), one.copulas, one.cost) for m, one in enumerate(models, start=1)]
    tables = stack([dataclasses.replace(_lay_out(*fit, chosen), copulas=None) for fit in fits])
    levels = policies.thresholds, policies.members, policies.refusals
    outcome = _exact(tables, part(calibrators, 0), part((calibrators, marginals), slice(1, None)), levels)
    return outcome if isinstance(model, Sequence) else without_models(outcome)


def listed(model: CascadeModel | Sequence[CascadeModel]) -> list[CascadeModel]:
    """One fitted model, or several, as a list; ValueError for none at all."""
    models = [model] if isinstance(model, CascadeModel) else list(model)
    if not models:
        raise ValueError("model must be a fitted model or a list of at least one")
    return models


def without_models(outcome: Outcome) -> Outcome:
    """What a cascade does under one fitted model, of what it does under the first of several: (…, M, k) → (…, k)."""
    first = jax.tree.map(lambda leaf: leaf[..., 0, :], dataclasses.replace(outcome, smoothing=outcome.asked))
    return dataclasses.replace(first, smoothing=outcome.smoothing)


def exact_outcomes(
    tables: Tables,
    reference: Calibrator,
    fits: tuple[Calibrator, Marginal],
    policies: tuple[jax.Array, jax.Array, jax.Array | None],
) -> Outcome:
    """What cascades do by their thresholds, (L, M, k), with Q in closed form above the thresholds.

    Args:
        tables: (M,) the quadrature of each fitted model.
        reference: (k,) the calibrators on whose scale the thresholds are.
        fits: (M, k) the calibrators and marginals of the fitted models.
        policies: (L, k) thresholds, members, and refusals or None.
    """
    left, right = tables.left[0], tables.right[0]
    same = (left[:, None] == left) & (right[:, None] == right)
    once = ~(same & np.tri(len(left), k=-1, dtype=bool)).any(1)  # a plan repeats pairs to fill up its axis

    def single(thresholds: jax.Array, members: jax.Array, refusals: jax.Array | None) -> Outcome:
        asked_so_far = jnp.cumsum(members)
        links = once & members[left] & members[right] & (asked_so_far[right] == asked_so_far[left] + 1)

        def under(tables: Tables, calibrators: Calibrator, marginals: Marginal) -> Outcome:
            translated = jax.vmap(translate)(
                reference, calibrators, marginals, jnp.where(members, thresholds, ALWAYS_ANSWER)
            )
            u, _, above = jax.vmap(Marginal.profile)(marginals, translated)
            refused = None
            if refusals is not None:
                lowest = jax.vmap(translate)(reference, calibrators, marginals, jnp.where(members, refusals, 0.0))
                refused = jax.vmap(Marginal.cdf)(marginals, lowest)
            first = jnp.argmax(members)
            return outcome_of_cuts(tables, u, links, first, members, above=above, refused=refused)

        outcome = jax.vmap(under)(tables, *fits)
        return dataclasses.replace(outcome, smoothing=jnp.zeros((), tables.cost.dtype))

    return jax.vmap(single)(*policies)


_lay_out = compiled(lay_out, "panels")


_exact = compiled(exact_outcomes)
