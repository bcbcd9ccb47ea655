"""Draws from the posterior of the model's parameters, by NUTS or Laplace's method; and credible bands of a frontier.

A threshold is a cut of the reference model's calibrated confidence φ̂, which a service computes. Under a draw, an answer
of confidence φ̂ is right with the draw's probability g(φ̂). The objective therefore has g_j(Q_j(u)) in place of Q_j(u),
where Q_j is the quantile function of φ̂ under the draw's marginal, at the nodes of the grid.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy import special

from rcjax._base.codec import check_fields, prefix_place, takes, whole_number
from rcjax._base.extras import import_extra
from rcjax._core.batching import list_pairs, take_entries
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide, open_unit
from rcjax.bayes.hierarchy import (
    PRIORS,
    Observations,
    Priors,
    build_observations,
    draw_masses,
    hierarchical_model,
    model_of_draw,
    readable_parameters,
    starting_point,
)
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit
from rcjax.model.marginals import Marginal
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.points import Bands, LossTerms, check_level
from rcjax.solving.optimum import build_pair_tables
from rcjax.solving.quadrature import outcome_of_cuts

_NEWTON_STEPS = 60  # most steps to the mode

#: Lengths of a Newton step that are tried, and the least curvature of a direction.
_LENGTHS = (1.0, 0.5, 0.2, 0.05, 0.01)
_MIN_PRECISION = 0.05

#: Steps of warm-up of NUTS, and its target acceptance probability, NumPyro's default.
_WARMUP, _ACCEPTANCE = 400, 0.8

#: Axes of the arrays of `Posterior.sites`, after chain and draw.
_DIMS = {
    **{name: ["model"] for name in ("intercept", "slope", "share")},
    **{name: ["model", "component"] for name in ("mean", "concentration")},
    "masses": ["model", "place"],
    "tau": ["pair"],
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Posterior:
    """A pytree of draws of a `CascadeModel`'s parameters given a log: D draws from C chains, k models, P pairs.

    The k models are in the order of `models`, which is the log's. `model` is a batch of models: every array has a
    leading axis of D draws.

    Confidence is on the scale of the `reference` throughout. `model.marginals` and `model.copulas` are the
    distributions of φ̂ = `reference.calibrate(logprob)`, and `model.calibrators` give the probability that an answer of
    a raw confidence is right. A draw's own calibrated confidence does not follow the draw's marginals;
    `posterior_figures` combines the two.
    """

    model: CascadeModel  # leading axis D
    reference: CascadeModel  # maximum-likelihood fit, whose calibrated confidence is φ̂
    sites: dict[str, jax.Array]  # (C, D / C, …) parameters by name: see `to_arviz`
    r_hat: dict[str, jax.Array] | None  # split R̂ of each parameter that NUTS sampled; None after Laplace
    effective_samples: dict[str, jax.Array] | None  # effective sample size of these parameters; None after Laplace
    divergences: jax.Array | None  # () number of divergent transitions; None after Laplace

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the k models."""
        return self.reference.models

    @property
    def draws(self) -> int:
        """The number of draws D."""
        return self.model.cost.shape[0]

    def to_arviz(self) -> Any:
        """Convert the draws to ArviZ's InferenceData (a DataTree from ArviZ 1.0 on), for its summaries and figures.

        Variables by model are `intercept` and `slope` (of logit P(correct) in the standardised ξ), `masses` (at φ_min,
        between, at φ_max), `share` of the upper component, and `mean` and `concentration` of each component. The
        variable by pair is `tau`, and the pools are `slope_pool` and `tau_pool`. Raises ImportError if ArviZ is not
        installed.
        """
        arviz = import_extra("arviz", extra="posterior")
        labels = {"coords": self._coords(), "dims": _DIMS}
        sites = {name: np.asarray(value) for name, value in self.sites.items()}
        # Groups were separate arguments before ArviZ 1.0.
        if "posterior" in inspect.signature(arviz.from_dict).parameters:
            return arviz.from_dict(posterior=sites, **labels)
        return arviz.from_dict({"posterior": sites}, **labels)

    def _coords(self) -> dict[str, list[str]]:
        pair_names = [f"{self.models[i]} → {self.models[j]}" for i, j in list_pairs(len(self.models))]
        atoms = self.reference.marginals.atoms
        between = 0 if atoms is None else atoms.mass.shape[-1]
        sides = ["lowest", "between", "highest", *(f"atom {number}" for number in range(1, between + 1))]
        return {"model": list(self.models), "pair": pair_names, "component": ["lower", "upper"], "place": sides}


@takes(log=Log)
def sample_posterior(
    log: Log,
    *,
    copula: str | type[Copula] = "gumbel",
    method: Literal["nuts", "laplace"] = "nuts",
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    progress: bool = False,
    priors: Priors | None = None,
) -> Posterior:
    """Draw the parameters of the Markov-copula model given a log, under the priors of `rcjax.bayes.hierarchy`.

    Args:
        log: training log.
        copula: name or class of a family; a pair's parameter is `from_tau` of its τ, other parameters have defaults.
        method: "nuts" runs NumPyro's No-U-Turn sampler, with 400 steps of warm-up, in coordinates that standardise the
            Gaussian approximation; check `Posterior.r_hat` before using the draws. "laplace" draws from that
            approximation: a Gaussian at the mode, in unconstrained parameters, with the curvature there. It takes a
            fraction of a second after compilation, which logs of one size share.
        draws: number of draws; for NUTS per chain.
        chains: number of chains of NUTS.
        seed: seed of the draws.
        progress: whether to show NumPyro's progress bar.
        priors: constants of the priors; None: `Priors()`.

    Arrays have JAX's default float type.

    Raises LogError as `rcjax.fit` does; ValueError for an unknown family or method, invalid priors, fewer than one
    chain, or fewer than one draw (four for NUTS, because of R̂); FloatingPointError if draws are not finite; ImportError
    if NumPyro is not installed (the extra `rcjax[posterior]`).

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> posterior = sample_posterior(log, method="laplace", draws=50)
    >>> posterior.model.calibrators.coefficients.shape, posterior.model.copulas.theta.shape
    ((50, 2, 2), (50, 1))
    """
    _check_draws(method, draws, chains)
    if log.scores is not None:
        problem = "its answers have scores, and this model needs labels of 1 and 0: the default tuning takes scores"
        raise LogError(f"{log.source}: {problem}")
    priors = priors or PRIORS
    with prefix_place("priors"):
        check_fields(priors)
    import_extra("numpyro", extra="posterior")
    family = as_family(copula)
    reference = fit(log, copula=family)
    fitted = dataclasses.replace(reference, models=())  # names are static: other names would compile everything anew
    evidence, start = _prepare(fitted, log.logprob, log.correct, log.answered, jnp.asarray(log.labelled), priors)
    for_chains, for_gaussian, for_masses = jax.random.split(jax.random.key(seed), 3)
    mode, scale = _approximate(evidence, start)
    if method == "laplace":
        z = jax.random.normal(for_gaussian, (1, draws, mode.shape[0]), mode.dtype)
        divergences = None
    else:
        z, divergences = _run_nuts(evidence, start, mode, scale, for_chains, (chains, draws), progress)
    sites, drawn = _describe(fitted, evidence, start, mode + z @ scale.T, for_masses)
    if not all(np.isfinite(value).all() for value in jax.device_get(sites).values()):
        raise FloatingPointError(f"{log.source}: some draws of the posterior are not finite")
    model = dataclasses.replace(drawn, models=reference.models, record=reference.record)
    r_hat, effective = (None, None) if method == "laplace" else _diagnose(sites)
    return Posterior(model, reference, sites, r_hat, effective, divergences)


def _check_draws(method: str, draws: int, chains: int) -> None:
    """Raise ValueError for an unknown method, or too few draws or chains."""
    if method not in ("nuts", "laplace"):
        raise ValueError(f"method is {method!r}; it is 'nuts' or 'laplace'")
    whole_number(draws, "draws", 4 if method == "nuts" else 1)
    whole_number(chains, "chains", 1)


@compiled
def _prepare(
    fitted: CascadeModel,
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    labelled: jax.Array,
    priors: Priors,
) -> tuple[Observations, dict[str, jax.Array]]:
    evidence = build_observations(fitted, logprob, correct, answered, labelled, priors)
    return evidence, starting_point(fitted, evidence)


def _potential(
    evidence: Observations, start: dict[str, jax.Array]
) -> tuple[Callable[..., Any], jax.Array, Callable[..., Any]]:
    """Return (energy as a function of unconstrained parameters (d,), the start (d,), function back to the sites)."""
    from numpyro.infer import util

    model = partial(hierarchical_model, evidence)
    flat, unravel = ravel_pytree(util.unconstrain_fn(model, (), {}, start))

    def energy(z: jax.Array) -> jax.Array:
        return jnp.asarray(util.potential_energy(model, (), {}, unravel(z)))

    def constrain(z: jax.Array) -> dict[str, jax.Array]:
        return util.constrain_fn(model, (), {}, unravel(z))

    return energy, flat, constrain


class _NewtonState(NamedTuple):
    """State of Newton's method on the energy."""

    step: jax.Array | int  # () number of steps taken
    z: jax.Array  # (d,) unconstrained parameters
    scale: jax.Array  # (d, d) S, with S Sᵀ the inverse of the Hessian at the point before
    gain: jax.Array  # () gain of the last step that the slope promised


@compiled
def _approximate(evidence: Observations, start: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Find the mode by Newton's method, and return (mode (d,), S (d, d)); S Sᵀ inverts the energy's Hessian there."""
    energy, flat, _ = _potential(evidence, start)
    lengths = jnp.asarray((*_LENGTHS, 0.0), flat.dtype)
    tolerance = jnp.sqrt(jnp.finfo(flat.dtype).eps)

    def slope_twice(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope = jax.grad(energy)(z)
        return slope, slope

    def unfinished(state: _NewtonState) -> jax.Array:
        return (state.step < _NEWTON_STEPS) & (state.gain > tolerance)

    def advance(state: _NewtonState) -> _NewtonState:
        z = state.z
        hessian, slope = jax.jacfwd(slope_twice, has_aux=True)(z)
        precision, axes = jnp.linalg.eigh(hessian)
        precision = jnp.maximum(jnp.abs(precision), _MIN_PRECISION)
        ahead = axes @ ((slope @ axes) / precision)
        trials = z - lengths[:, None] * ahead
        # If no length lowers the energy, rounding decides.
        least = jnp.argmin(jnp.nan_to_num(jax.vmap(energy)(trials), nan=jnp.inf))
        scale = axes / jnp.sqrt(precision)
        return _NewtonState(state.step + 1, trials[least], scale, lengths[least] * (slope @ ahead))

    identity, unknown = jnp.eye(flat.shape[0], dtype=flat.dtype), jnp.asarray(jnp.inf, flat.dtype)
    last = lax.while_loop(unfinished, advance, _NewtonState(0, flat, identity, unknown))
    return last.z, last.scale


def _run_nuts(
    evidence: Observations,
    start: dict[str, jax.Array],
    mode: jax.Array,
    scale: jax.Array,
    key: jax.Array,
    shape: tuple[int, int],
    progress: bool,
) -> tuple[jax.Array, jax.Array]:
    """Run NUTS in coordinates that standardise the approximation.

    Returns (draws (chains, draws, d), number of divergences ()).
    """
    from numpyro.infer import MCMC, NUTS

    energy, _, _ = _potential(evidence, start)
    chains, draws = shape
    for_start, for_run = jax.random.split(key)
    first = jax.random.normal(for_start, (chains, mode.shape[0]), mode.dtype)
    sampler = MCMC(
        NUTS(potential_fn=lambda z: energy(mode + scale @ z), target_accept_prob=_ACCEPTANCE),
        num_warmup=_WARMUP,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=progress,
    )
    sampler.run(for_run, init_params=first if chains > 1 else first[0], extra_fields=("diverging",))
    return sampler.get_samples(group_by_chain=True), sampler.get_extra_fields()["diverging"].sum()


@compiled
def _describe(
    fitted: CascadeModel, evidence: Observations, start: dict[str, jax.Array], flat: jax.Array, key: jax.Array
) -> tuple[dict[str, jax.Array], CascadeModel]:
    """Convert draws (C, N, d) to (sites (C, N, …), models with leading axis D = C N)."""
    *_, constrain = _potential(evidence, start)
    shape = flat.shape[:2]
    parameters = jax.vmap(lambda z: readable_parameters(constrain(z), evidence.tau_range))(
        flat.reshape(-1, flat.shape[-1])
    )
    parameters["masses"] = draw_masses(evidence, key, shape[0] * shape[1])
    drawn = jax.vmap(lambda draw: model_of_draw(fitted, evidence, draw))(parameters)
    return {name: value.reshape(*shape, *value.shape[1:]) for name, value in parameters.items()}, drawn


def _diagnose(sites: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Return (split R̂, effective sample size) of every sampled site that varies; masses are independent draws."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    sampled = {name: np.asarray(value, float) for name, value in sites.items() if name != "masses"}
    sampled = {name: value for name, value in sampled.items() if value.size and np.ptp(value) > 0}
    split, size = (
        {name: jnp.asarray(diagnose(value)) for name, value in sampled.items()}
        for diagnose in (split_gelman_rubin, effective_sample_size)
    )
    return split, size


_BATCH = 256  # policies evaluated at a time


def accuracy_at_reference(draw: Calibrator, reference: Calibrator, confidence: jax.Array) -> jax.Array:
    """Return g(φ̂), the probability under a draw's calibrator that an answer of reference confidence φ̂ is right.

    It is elementwise in the confidence, for one model; `vmap` it over models and draws.

    >>> from rcjax import demo_model
    >>> calibrator = take_entries(demo_model().calibrators, 0)
    >>> round(float(accuracy_at_reference(calibrator, calibrator, 0.7)), 4)
    0.7
    """
    xi = divide(special.logit(open_unit(confidence)) - reference.coefficients[0], reference.xi_slope)
    return special.expit(draw.coefficients[0] + draw.coefficients[1] * xi)


@takes(posterior=Posterior, frontier=Frontier)
def posterior_figures(posterior: Posterior, frontier: Frontier, *, draws: int | None = None) -> LossTerms:
    """Predict the outcomes of a frontier's L policies under each of D draws: (D, L).

    The frontier must be solved from the posterior's reference model, with one threshold per model. At most `draws`
    draws are used, evenly spaced; None: all.

    Raises ValueError for adaptive policies, a frontier whose model is calibrated differently, and fewer than one draw;
    FloatingPointError if outcomes are not finite.

    Example:
        frontier = rcjax.solve_frontier(posterior.reference, lam=[100.0, 1000.0])
        posterior_figures(posterior, frontier, draws=10).wrong.std(0)  # how unsure the error of each policy is
    """
    if frontier.thresholds is None:
        raise ValueError("adaptive policies have no thresholds to evaluate: solve for cascades='all'")
    reference, model = posterior.reference, frontier.model
    is_same = reference.models == model.models and reference.calibrators.transform == model.calibrators.transform
    if not is_same or not np.array_equal(reference.calibrators.coefficients, model.calibrators.coefficients):
        raise ValueError("the frontier's thresholds are on another scale: solve it from posterior.reference")
    policies = frontier.policies.on_host()
    left, right = np.triu_indices(len(reference.models), 1)
    following = policies.actions[..., -2]  # a model's action below its threshold
    links = policies.members[:, left] & (following[:, left] == right)
    rows = frontier.thresholds, links, policies.first, frontier.abstain_thresholds
    figures = jax.device_get(_evaluate(_thin(posterior.model, draws), reference.calibrators, rows))
    if not all(np.isfinite(figure).all() for figure in figures):
        raise FloatingPointError("some draws of the posterior predict an error or cost that is not finite")
    return LossTerms(*map(jnp.asarray, figures))


@takes(posterior=Posterior, frontier=Frontier)
def credible_bands(posterior: Posterior, frontier: Frontier, *, level: float = 0.9, draws: int | None = 200) -> Bands:
    """Compute credible intervals for the error and cost of a frontier's policies, given a log.

    They are quantiles of `posterior_figures`, and valid only if the model describes the log; otherwise use `bootstrap`.
    The policies are fixed, so that thresholds have no interval.

    Args:
        posterior: draws of the model's parameters.
        frontier: frontier of L points.
        level: probability of each interval, in (0, 1).
        draws: greatest number of draws used, evenly spaced; None: all.

    Raises ValueError for a level outside (0, 1), and the errors of `posterior_figures`.

    Example:
        frontier = rcjax.solve_frontier(posterior.reference, lam=[100.0, 1000.0])
        dataclasses.replace(frontier, bands=credible_bands(posterior, frontier, level=0.8))
    """
    check_level(level)
    figures = posterior_figures(posterior, frontier, draws=draws)
    tails = jnp.array([(1 - level) / 2, (1 + level) / 2])
    error, cost, abstention = (jnp.quantile(figure, tails, axis=0).T for figure in figures)
    return Bands(error, cost, level, len(figures.wrong), None if frontier.abstention is None else abstention)


def _thin(model: CascadeModel, draws: int | None) -> CascadeModel:
    """Select at most `draws` evenly spaced draws of a batch of models.

    Names are dropped: they are static in a pytree, and without names posteriors of one size share a program.
    """
    count = model.cost.shape[0]
    number = count if draws is None else min(whole_number(draws, "draws", 1), count)
    return take_entries(dataclasses.replace(model, models=()), np.arange(number) * count // number)


@partial(compiled, runs="long")
def _evaluate(
    drawn: CascadeModel, reference: Calibrator, policies: tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]
) -> LossTerms:
    """Evaluate L policies (thresholds, links, first models, abstention thresholds or None) under D draws: (D, L)."""

    def under(draw: CascadeModel) -> LossTerms:
        tables = build_pair_tables(draw.marginals, draw.copulas, draw.cost)
        quantile = jax.vmap(accuracy_at_reference)(draw.calibrators, reference, tables.grid.quantile)
        tables = dataclasses.replace(tables, grid=dataclasses.replace(tables.grid, quantile=quantile))

        def single(policy: tuple[jax.Array, ...]) -> LossTerms:
            thresholds, links, first, abstain_thresholds = policy
            cdf = jax.vmap(Marginal.cdf)
            cuts = None if abstain_thresholds is None else cdf(draw.marginals, abstain_thresholds)
            return outcome_of_cuts(tables, cdf(draw.marginals, thresholds), links, first, abstain_cuts=cuts).terms

        return lax.map(single, policies, batch_size=min(len(policies[0]), _BATCH))

    return lax.map(under, drawn)
