"""Random models, and plain numpy and scipy references for the objective of a cascade."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad_vec
from scipy.special import betainc

from rcjax import CascadeModel
from rcjax.copulas import Gumbel
from rcjax.model import Marginal
from rcjax.model.calibration import Calibrator
from rcjax.solving import error_and_cost


def make_model(marginals: Marginal, copulas: Gumbel, cost) -> CascadeModel:
    """A model with the identity, or nearly, for calibration: any leading axes batch it."""
    cost = jnp.asarray(cost)
    zero, two = jnp.zeros_like(cost), jnp.zeros((*cost.shape, 2), cost.dtype)
    line, status = two.at[..., 1].set(1.0), jnp.zeros(cost.shape, int)
    calibrators = Calibrator(line, zero - 5, zero + 5, zero, status, "generation")
    names = tuple(f"m{j}" for j in range(cost.shape[-1]))
    return CascadeModel(calibrators, marginals, copulas, cost, names)


def random_models(seed: int, k: int, count: int, *, steep=(0.3, 300.0), theta=(1.0, 8.0)) -> CascadeModel:
    """`count` random models of k LLMs on a leading axis: steep marginals and large masses among them."""
    rng, shape = np.random.default_rng(seed), (count, k)
    proportion = rng.uniform(0.02, 0.98, shape)
    a, b = np.exp(rng.uniform(*np.log(steep), (2, *shape, 2)))
    columns = (
        rng.uniform(0.05, 0.4, shape),
        rng.uniform(0.7, 0.999, shape),
        rng.choice([0, 0.003, 0.1, 0.3], shape),
        rng.choice([0, 0.003, 0.2, 0.45], shape),
        np.stack([proportion, 1 - proportion], -1),
        a,
        b,
    )
    span = theta[1] - theta[0]
    copulas = Gumbel(jnp.asarray(theta[0] + span * rng.uniform(0, 1, (count, k * (k - 1) // 2)) ** 2))
    cost = np.sort(rng.uniform(1, 30, shape), -1)
    return make_model(Marginal(*(jnp.asarray(x) for x in columns)), copulas, cost)


def take(models, index):
    """One of the models of a batch, or a smaller batch; on the host, where that compiles nothing."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], models)


def random_thresholds(seed: int, models: CascadeModel, count: int, margin: float = 0.05) -> np.ndarray:
    """(…, count, k − 1) thresholds everywhere in the ranges of the models and a little outside."""
    rng = np.random.default_rng(seed)
    low = np.asarray(models.marginals.lowest)[..., None, :-1] - margin
    high = np.asarray(models.marginals.highest)[..., None, :-1] + margin
    return rng.uniform(0, 1, (*low.shape[:-2], count, low.shape[-1])) * (high - low) + low


class PlainMarginal:
    """The mixed marginal of one model in φ-space, by scipy."""

    def __init__(self, marginals: Marginal, j: int) -> None:
        leaves = (marginals.lowest, marginals.highest, marginals.mass_lowest, marginals.mass_highest)
        self.low, self.high, self.bottom, self.top = (float(x[j]) for x in leaves)
        self.pi, self.a, self.b = (np.asarray(x[j]) for x in (marginals.proportion, marginals.a, marginals.b))

    def cdf(self, phi):
        phi = np.asarray(phi, float)
        x = np.clip((phi - self.low) / (self.high - self.low), 0, 1)[..., None]
        inner = self.bottom + (1 - self.bottom - self.top) * (self.pi * betainc(self.a, self.b, x)).sum(-1)
        return np.where(phi < self.low, 0.0, np.where(phi >= self.high, 1.0, inner))

    def breaks(self):
        """Points of the range around everything that varies fast."""
        mean = self.a / (self.a + self.b)
        deviation = np.sqrt(mean * (1 - mean) / (self.a + self.b + 1))
        steps = np.array([-6, -4, -2, -1, 0, 1, 2, 4, 6])
        tiny = 10.0 ** -np.arange(1, 13, 2)
        x = np.concatenate([(mean + steps[:, None] * deviation).ravel(), tiny, 1 - tiny])
        return self.low + (self.high - self.low) * np.unique(x[(x > 0) & (x < 1)])


def gumbel_cdf(theta, u, v):
    with np.errstate(divide="ignore"):
        return np.exp(-(((-np.log(u)) ** theta + (-np.log(v)) ** theta) ** (1 / theta)))


def mean_above(law, marginal: PlainMarginal, phi: float) -> np.ndarray:
    """∫_φ^∞ t dG(t) by parts, for a vector of cdfs law(F(t)): adaptive quadrature of G in φ-space."""
    if phi >= marginal.high:
        return 0 * law(1.0)
    start = max(phi, marginal.low)
    points = marginal.breaks()
    cuts = [start, *points[(points > start) & (points < marginal.high)], marginal.high]
    end = law(1.0)
    area = 0.0
    for left, right in itertools.pairwise(cuts):
        # Just below the upper end F is not yet 1: the mass there is not part of the integral.
        piece, _ = quad_vec(lambda t: law(marginal.cdf(t)), left, right, epsabs=1e-11, epsrel=1e-10, limit=300)
        area = area + piece
    below = phi * law(marginal.cdf(phi)) if phi >= marginal.low else 0.0
    return marginal.high * end - below - area


def pair_reference(model: CascadeModel, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(error, cost) of a cascade of two at thresholds (n,), by adaptive quadrature in φ-space."""
    first, second = (PlainMarginal(model.marginals, j) for j in (0, 1))
    theta, cost = float(model.copulas.theta[0]), np.asarray(model.cost)
    u = first.cdf(thresholds)
    kept = np.array([float(mean_above(lambda v: v, first, phi)) for phi in thresholds])
    passed = mean_above(lambda v: gumbel_cdf(theta, u, v), second, second.low - 1)
    return 1 - kept - passed, cost[0] + u * cost[1]


def walk(confidence: np.ndarray, cost: np.ndarray, thresholds: np.ndarray):
    """((error, its standard error), (cost, its standard error)) of thresholds (m − 1,) on draws (n, ≥ m).

    Only confidences are drawn: a query that model j answers is wrong with probability 1 − Φ_j.
    """
    n, m = len(confidence), len(thresholds) + 1
    error, spent, left = np.zeros(n), np.zeros(n), np.ones(n, bool)
    for j in range(m):
        spent += left * cost[j]
        answers = left & (confidence[:, j] > thresholds[j]) if j < m - 1 else left
        error = np.where(answers, 1 - confidence[:, j], error)
        left = left & ~answers
    return tuple((x.mean(), x.std() / np.sqrt(n)) for x in (error, spent))


def batched(models, thresholds, names=None):
    """(error, cost) (count, T) of a batch of models at thresholds (count, T, m − 1): by one programme for every T."""
    figures = [error_and_cost(take(models, i), cuts, names) for i, cuts in enumerate(thresholds)]
    return tuple(np.array(figure) for figure in zip(*figures, strict=True))


def random_chains():
    """Two models of six LLMs, 6 rows of thresholds that end each of their chains of 2 to 6 (30 rows), and figures."""
    models = random_models(21, 6, 2)
    thresholds = random_thresholds(22, models, 30)
    for block, m in enumerate(range(2, 6)):
        thresholds[:, 6 * block : 6 * block + 6, m - 1] = 0.0  # model m answers whatever reaches it
    return models, thresholds, batched(models, thresholds)
