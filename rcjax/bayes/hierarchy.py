"""The hierarchical model of `sample_posterior`: the parameters of `CascadeModel` with priors, in NumPyro.

The maximum-likelihood calibrators of `rcjax.fit` define a fixed scale for each model, φ̂ = σ(α̂ + β̂ξ), a monotone
function of the raw confidence. On this scale, the answers (ξ_j, y_j) of k models to n queries follow

    y_j  ~ Bernoulli(σ(α_j + β_j z_j))            α_j ~ N(0, 2.5²), β_j ~ N(β, ½²), β ~ N(1, 1)
    φ̂_j is φ_min, an atom, between, or φ_max      with probabilities ~ Dirichlet(½, …, ½)
    between, two scaled betas                     share ~ Beta(2, 2), means σ(m) < σ(m + d), m ~ N(0, 1.5²),
                                                  log d ~ N(log 1.5, ½²), log(a + b) ~ N(log 6, 1)
    ranks of (φ̂_i, φ̂_j) ~ C(·; τ_ij)              τ_ij = the family's range × σ(t_ij), t_ij ~ N(t, 0.7²), t ~ N(t₀, 1)

z is the standardised ξ, and t₀ is at τ = 0.3. The numbers are the defaults of `Priors`. The priors state what a log of
30 queries cannot show:

- higher confidence mostly means more right answers, by a similar slope in all models;
- no component of a mixture is empty or, for lack of data, a spike;
- the pairs of models depend on each other with similar strength.

N(0, 2.5²) is the weakly informative default of Gelman et al. (2008), "A weakly informative default prior distribution
for logistic and other regression models". The components are ordered by their means, so that they are identified. The
spreads of models and pairs around their pools (½ and 0.7) are fixed: five models say little about them, and the funnel
of an estimated scale would be the one part of the posterior that is far from Gaussian.

Three choices make the posterior a product of small blocks: calibration, each model's marginal, dependence.

- The likelihood of the copulas is composite (Varin, Reid & Firth 2011, "An overview of composite likelihood methods").
  Each pair has its own copula, which uses the data of the pair exactly once. Only the pooled dependence t treats the
  pairs as more independent than they are.
- The copulas depend on the margins through ranks, without feedback to the margins: a cut (Plummer 2015, "Cuts in
  Bayesian graphical models"). With feedback, a marginal would count each answer once more for each of its pairs, and be
  far too certain. The ranks are those of the maximum-likelihood marginals, as in inference for margins (Joe 1997,
  Multivariate Models and Dependence Concepts, section 10.1). Their estimation error is neglected, which saves the
  incomplete beta function at every step of a sampler.
- The probabilities of the masses are conjugate, and drawn exactly. φ_min and φ_max stay the training extremes.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from scipy.interpolate import CubicSpline

from rcjax._base.codec import Between, Positive
from rcjax._base.extras import import_extra
from rcjax._core.batching import take_entries
from rcjax._core.numerics import betaln, divide, extremes
from rcjax.copulas import Copula
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.likelihood import SMOOTH, Ranks, compute_ranks, log_likelihood
from rcjax.model.marginals import MAX_CONCENTRATION, MIN_SHAPE, Marginal

Tau = Annotated[float, Between(-0.999, 0.999)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Priors:
    """Constants of the priors; the defaults suit logs of LLM answers.

    α and β are intercept and slope of logit P(correct) in the standardised confidence, by model. N(m, s²) has standard
    deviation s.

    >>> Priors(tau_center=0.6).dependence_spread
    0.7
    """

    intercept_scale: Positive = 2.5  # α ~ N(0, ·²)
    slope_center: float = 1.0  # pooled slope β̄ ~ N(·, slope_scale²)
    slope_scale: Positive = 1.0
    slope_spread: Positive = 0.5  # β ~ N(β̄, ·²)
    mass_count: Positive = 0.5  # pseudo-counts: masses ~ Dirichlet(·, …, ·)
    share_count: Positive = 2.0  # share of the upper component ~ Beta(·, ·)
    mean_scale: Positive = 1.5  # logit of the lower component's mean ~ N(0, ·²)
    gap_center: Positive = 1.5  # logit of the upper component's mean, less the lower one's: log ~ N(log ·, gap_scale²)
    gap_scale: Positive = 0.5
    concentration_center: Positive = 6.0  # a + b of a component: log ~ N(log ·, concentration_scale²)
    concentration_scale: Positive = 1.0
    tau_center: Tau = 0.3  # Kendall's τ at t₀, for the pooled dependence t ~ N(t₀, dependence_scale²)
    dependence_scale: Positive = 1.0
    dependence_spread: Positive = 0.7  # t_ij ~ N(t, ·²)


#: The default priors.
PRIORS = Priors()

#: Values of t at which the likelihood of a pair is tabulated, up to 0.0025 of the range of τ from either end.
KNOTS = np.linspace(-6.0, 6.0, 49)

#: Matrix from values at the knots to slopes of the natural cubic spline there, per distance of knots; (T, T).
_SPLINE = CubicSpline(np.arange(len(KNOTS)), np.eye(len(KNOTS)), bc_type="natural")(np.arange(len(KNOTS)), 1)


class Observations(NamedTuple):
    """The data of the model: k models, n queries, P pairs. Masked entries are arbitrary finite numbers."""

    z: jax.Array  # (k, n) standardised ξ; 0 for a model whose φ̂ does not vary
    center: jax.Array  # (k,) z = (ξ − center) · steepness
    steepness: jax.Array  # (k,)
    correct: jax.Array  # (k, n) bool
    answered: jax.Array  # (k, n) bool
    labelled: jax.Array  # (k, n) bool, answers with a label
    log_x: jax.Array  # (2, k, n) log x and log(1 − x) of φ̂ scaled to (0, 1)
    mass: jax.Array  # (k, n) number of the point mass that holds a confidence, or SMOOTH
    pairs: jax.Array  # (P, T) log-likelihood of each pair at the dependences `KNOTS`
    tau_range: jax.Array  # (2,) least τ of the copulas' family, and the width of its range
    atoms: jax.Array | None = None  # (k, A) bool, False for padding; None: no model has atoms
    priors: Priors = PRIORS


def build_observations(
    fitted: CascadeModel,
    logprob: jax.Array,
    correct: jax.Array,
    answered: jax.Array,
    labelled: jax.Array,
    priors: Priors = PRIORS,
) -> Observations:
    """Collect the observations of a log, on the scale of the calibrators fitted to it.

    Args:
        fitted: maximum-likelihood fit of the log.
        logprob: (n, k) raw log-probability.
        correct: (n, k) whether the answer is right.
        answered: (n, k) whether there is an answer.
        labelled: (n, k) whether the answer has a label.
        priors: constants of the priors.
    """
    calibrators, marginals, family = fitted.calibrators, fitted.marginals, type(fitted.copulas)
    answered = answered.T
    finite = jnp.where(answered, logprob.T, -1.0)
    xi = jax.vmap(Calibrator.xi)(calibrators, finite)
    total = jnp.maximum(answered.sum(1), 1)
    center = jnp.where(answered, xi, 0.0).sum(1) / total
    spread = jnp.sqrt(jnp.where(answered, (xi - center[:, None]) ** 2, 0.0).sum(1) / total)
    # A model that is always right, or never, has a single calibrated confidence.
    varies = (correct.T & labelled.T).any(1) & (~correct.T.astype(bool) & labelled.T).any(1)
    steepness = jnp.where((calibrators.xi_slope == 0) | ~varies, 0.0, divide(1.0, spread))
    x, placed = _located(marginals, jax.vmap(Calibrator.__call__)(calibrators, finite), answered)
    left, right = np.triu_indices(len(answered), 1)
    return Observations(
        z=(xi - center[:, None]) * steepness[:, None],
        center=center,
        steepness=steepness,
        correct=correct.T.astype(bool),
        answered=answered,
        labelled=labelled.T,
        log_x=jnp.stack([jnp.log(x), jnp.log1p(-x)]),
        mass=jnp.asarray(placed.mass),
        pairs=_pair_curves(
            family, take_entries(placed, left), take_entries(placed, right), answered[left] & answered[right]
        ),
        tau_range=_tau_range(family),
        atoms=None if marginals.atoms is None else marginals.atoms.mass > 0,
        priors=priors,
    )


def _located(marginals: Marginal, confidence: jax.Array, answered: jax.Array) -> tuple[jax.Array, Ranks]:
    """Scale confidences (k, n) to (0, 1) between each model's extremes, and return (scaled confidences, ranks)."""
    # The extremes are recomputed: another program's may differ by a rounding error.
    lowest, highest = extremes(confidence, answered)
    placed = jax.vmap(compute_ranks)(dataclasses.replace(marginals, lowest=lowest, highest=highest), confidence)
    scaled = divide(confidence - lowest[:, None], (highest - lowest)[:, None], 0.5)
    info = jnp.finfo(scaled.dtype)
    return jnp.clip(jnp.where(placed.mass == SMOOTH, scaled, 0.5), info.tiny, 1 - info.epsneg), placed


def _pair_curves(family: type[Copula], first: Ranks, second: Ranks, both: jax.Array) -> jax.Array:
    """Tabulate the log-likelihood of P pairs of margins at the dependences `KNOTS`: (P, T).

    Ranks are fixed, so that the likelihood of a pair is a function of one number. A sampler's step then reads four
    numbers of the table per pair, for every family.
    """
    copulas = jax.vmap(family.from_tau)(as_tau(jnp.asarray(KNOTS, first.u.dtype), _tau_range(family)))

    def curve(first: Ranks, second: Ranks, both: jax.Array) -> jax.Array:
        terms = jax.vmap(lambda copula: log_likelihood(copula, first, second))(copulas)
        return jnp.where(both, terms, 0.0).sum(-1)

    return jax.vmap(curve)(first, second, both)


def interpolate_curves(curves: jax.Array, dependence: jax.Array) -> jax.Array:
    """Evaluate natural cubic splines through values (P, T) at `KNOTS`, constant beyond them, at dependences (P,): (P,).

    A straight line is its own spline:

    >>> round(float(interpolate_curves(jnp.asarray(KNOTS)[None], jnp.array([0.3]))[0]), 4)
    0.3
    """
    x = (jnp.clip(dependence, KNOTS[0], KNOTS[-1]) - KNOTS[0]) / (KNOTS[1] - KNOTS[0])
    left = jnp.clip(x.astype(int), 0, len(KNOTS) - 2)
    t = x - left
    slopes = curves @ jnp.asarray(_SPLINE.T, curves.dtype)
    ends = jnp.stack([curves, slopes])[:, np.arange(len(curves)), jnp.stack([left, left + 1])]
    (y0, m0), (y1, m1) = jnp.moveaxis(ends, 1, 0)
    return y0 + t * (m0 + t * ((3 * (y1 - y0) - 2 * m0 - m1) + t * (2 * (y0 - y1) + m0 + m1)))


def starting_point(fitted: CascadeModel, evidence: Observations) -> dict[str, jax.Array]:
    """Return values of all sites near the maximum-likelihood fit, clipped to a range that the priors make plausible."""
    calibrators, marginals = fitted.calibrators, fitted.marginals
    intercept, slope = calibrators.coefficients[:, 0], calibrators.xi_slope
    steep = evidence.steepness > 0
    intercept = jnp.clip(intercept + slope * evidence.center, -5.0, 5.0)
    slope = jnp.clip(jnp.where(steep, divide(slope, evidence.steepness), evidence.priors.slope_center), -1.0, 3.0)
    order = jnp.argsort(marginals.a / (marginals.a + marginals.b), axis=-1)
    a, b, share = (
        jnp.take_along_axis(parameter, order, -1) for parameter in (marginals.a, marginals.b, marginals.proportion)
    )
    logit = jnp.clip(jnp.log(a) - jnp.log(b), -4.0, 4.0)
    dependence = _as_dependence(jax.vmap(lambda copula: copula.tau())(fitted.copulas), evidence.tau_range)
    return {
        "slope_pool": slope.mean(),
        "intercept": intercept,
        "slope": slope,
        "share": jnp.clip(share[:, 1], 0.1, 0.9),
        "lower": logit[:, 0],
        "gap": jnp.clip(logit[:, 1] - logit[:, 0], 0.5, 4.0),
        "concentration": jnp.clip(a + b, 1.0, 60.0),
        "dependence_pool": dependence.sum() / max(len(dependence), 1),
        "dependence": dependence,
    }


def hierarchical_model(evidence: Observations) -> None:
    """Define the model of this module as a NumPyro program, without the masses, which are conjugate.

    Sites by model are `intercept` α, `slope` β, `share` of the upper component, `lower` m, `gap` d, and `concentration`
    a + b of both components. The site by pair is `dependence` t, and the pools are `slope_pool` and `dependence_pool`.
    Confidences have no site: their likelihood is conditional on φ̂ and composite, and enters as factors.
    """
    numpyro, dist = (import_extra(name, extra="posterior") for name in ("numpyro", "numpyro.distributions"))

    def site(name: str, prior: Any, *shape: int) -> jax.Array:
        return numpyro.sample(name, prior.expand(shape).to_event(len(shape)))

    k, priors = evidence.z.shape[0], evidence.priors
    slope_pool = site("slope_pool", dist.Normal(priors.slope_center, priors.slope_scale))
    intercept = site("intercept", dist.Normal(0.0, priors.intercept_scale), k)
    slope = site("slope", dist.Normal(slope_pool, priors.slope_spread), k)
    answers = dist.Bernoulli(logits=intercept[:, None] + slope[:, None] * evidence.z)
    numpyro.sample("correct", answers.mask(evidence.labelled).to_event(2), obs=evidence.correct)

    share = site("share", dist.Beta(priors.share_count, priors.share_count), k)
    lower = site("lower", dist.Normal(0.0, priors.mean_scale), k)
    gap = site("gap", dist.LogNormal(jnp.log(priors.gap_center), priors.gap_scale), k)
    sizes = dist.LogNormal(jnp.log(priors.concentration_center), priors.concentration_scale)
    concentration = site("concentration", sizes, k, 2)
    numpyro.factor("confidence", mixture_terms(evidence, share, *_shapes(lower, gap, concentration)).sum())

    dependence_pool = site(
        "dependence_pool", dist.Normal(_as_dependence(priors.tau_center, evidence.tau_range), priors.dependence_scale)
    )
    dependence = site("dependence", dist.Normal(dependence_pool, priors.dependence_spread), evidence.pairs.shape[0])
    numpyro.factor("pairs", interpolate_curves(evidence.pairs, dependence).sum())


def mixture_terms(evidence: Observations, share: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the log-likelihood of the confidences in the smooth parts: (k, n).

    Args:
        evidence: observations of the log.
        share: (k,) share of the second beta.
        a, b: (k, 2) parameters of the two betas.
    """
    weights = jnp.log(jnp.stack([1 - share, share], axis=-1)) - betaln(a, b)
    log_x, log_1x = evidence.log_x[..., None]
    parts = weights[:, None] + (a - 1)[:, None] * log_x + (b - 1)[:, None] * log_1x
    return jnp.where(evidence.answered & (evidence.mass == SMOOTH), special.logsumexp(parts, axis=-1), 0.0)


def _shapes(lower: jax.Array, gap: jax.Array, concentration: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the parameters (a, b) of two betas, (…, 2) each, with means σ(lower) and σ(lower + gap).

    `concentration` (…, 2) is a + b.
    """
    logit = jnp.stack([lower, lower + gap], axis=-1)
    concentration = jnp.minimum(concentration, MAX_CONCENTRATION)
    a, b = concentration * special.expit(logit), concentration * special.expit(-logit)
    return jnp.maximum(a, MIN_SHAPE), jnp.maximum(b, MIN_SHAPE)


def _tau_range(family: type[Copula]) -> jax.Array:
    """Return the least τ of a family, and the width of its range of τ: (2,); (0, 0.98) for Gumbel's."""
    ends = jnp.asarray([-family.MAX_TAU, family.MAX_TAU], jnp.result_type(float))
    low, high = jax.vmap(lambda tau: family.from_tau(tau).tau())(ends)
    return jnp.stack([low, high - low])


def as_tau(dependence: jax.Array, tau_range: jax.Array) -> jax.Array:
    """Map an unconstrained dependence to Kendall's τ, elementwise."""
    return tau_range[0] + tau_range[1] * special.expit(dependence)


def _as_dependence(tau: jax.Array | float, tau_range: jax.Array) -> jax.Array:
    """Invert `as_tau`, elementwise, with τ clipped well inside its range; 0 if the family has a single τ."""
    return special.logit(jnp.clip(divide(tau - tau_range[0], tau_range[1], 0.5), 0.05, 0.95))


def draw_masses(evidence: Observations, key: jax.Array, draws: int) -> jax.Array:
    """Draw the probabilities of φ_min, the smooth part, φ_max and the atoms, given their counts: (draws, k, 3 + A).

    If all confidences are equal, φ_max has probability 1, as in `fit_marginal`.
    """
    atoms = 0 if evidence.atoms is None else evidence.atoms.shape[-1]
    places = np.array([0, SMOOTH, atoms + 1, *range(1, atoms + 1)])
    is_there = (evidence.mass[..., None] == places) & evidence.answered[..., None]
    counts = is_there.astype(evidence.z.dtype).sum(1)
    masses = jax.random.dirichlet(key, counts + evidence.priors.mass_count, (draws, counts.shape[0]))
    if evidence.atoms is not None:  # padding gets probability 0; the other masses stay Dirichlet
        masses = masses.at[..., 3:].multiply(evidence.atoms)
        masses = masses / masses.sum(-1, keepdims=True)
    at_highest = np.eye(counts.shape[1])[2]
    others = counts[:, :2].sum(1) + counts[:, 3:].sum(1)
    return jnp.where((others == 0)[:, None], jnp.asarray(at_highest, masses.dtype), masses)


def readable_parameters(sites: dict[str, jax.Array], tau_range: jax.Array) -> dict[str, jax.Array]:
    """Convert the sites of one draw to the readable parameters of `Posterior.sites`; `vmap` it over draws."""
    a, b = _shapes(sites["lower"], sites["gap"], sites["concentration"])
    names = ("intercept", "slope", "slope_pool", "share")
    return {
        **{name: sites[name] for name in names},
        "mean": a / (a + b),
        "concentration": a + b,
        "tau": as_tau(sites["dependence"], tau_range),
        "tau_pool": as_tau(sites["dependence_pool"], tau_range),
    }


def model_of_draw(fitted: CascadeModel, evidence: Observations, draw: dict[str, jax.Array]) -> CascadeModel:
    """Turn one draw, `readable_parameters` and with its `masses`, into a `CascadeModel`; `vmap` it over draws."""
    calibrators, marginals = fitted.calibrators, fitted.marginals
    slope = draw["slope"] * evidence.steepness
    coefficients = jnp.stack([draw["intercept"] - slope * evidence.center, slope], axis=-1)
    stated = calibrators.stated
    if stated is not None:
        xi = jax.vmap(Calibrator.xi)(calibrators, jnp.where(jnp.isnan(stated.logprob), -1.0, stated.logprob))
        confidence = special.expit(coefficients[:, :1] + coefficients[:, 1:] * xi)
        stated = dataclasses.replace(stated, confidence=jnp.where(jnp.isnan(stated.logprob), jnp.nan, confidence))
    atoms = marginals.atoms
    if atoms is not None:
        atoms = dataclasses.replace(atoms, mass=draw["masses"][:, 3:])
    slope_p = jnp.ones_like(slope)
    calibrators = dataclasses.replace(calibrators, coefficients=coefficients, slope_p=slope_p, stated=stated)
    marginals = dataclasses.replace(
        marginals,
        mass_lowest=draw["masses"][:, 0],
        mass_highest=draw["masses"][:, 2],
        atoms=atoms,
        proportion=jnp.stack([1 - draw["share"], draw["share"]], axis=-1),
        a=draw["mean"] * draw["concentration"],
        b=jnp.maximum((1 - draw["mean"]) * draw["concentration"], MIN_SHAPE),
    )
    copulas = jax.vmap(type(fitted.copulas).from_tau)(draw["tau"])
    return dataclasses.replace(fitted, calibrators=calibrators, marginals=marginals, copulas=copulas)
