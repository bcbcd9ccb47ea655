"""Figure 7: do cascades whose marginals or copulas fit badly gain less from them?"""

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks.paper.inputs import Source
from rcjax._core.batching import list_pairs
from rcjax.model.goodness_of_fit.dependence import empirical_copula, present_counts
from rcjax.model.marginals import cramer_von_mises


def misfit(source: Source) -> Iterator[dict]:
    """For each cascade, on the test split: mean √CvM of its marginals as trained, and mean root of the mean squared gap
    between the empirical and the fitted copula over its neighbouring pairs.
    """
    test = source.test.take(source.test.complete)
    confidence = source.model.calibrate(test.logprob).T
    marginal = np.asarray(jax.jit(jax.vmap(cramer_von_mises))(source.model.marginals, confidence))
    left, right = np.triu_indices(len(confidence), 1)
    gaps = np.asarray(jax.jit(jax.vmap(_gap))(source.model.copulas, confidence[left], confidence[right]))
    gap = dict(zip(list_pairs(len(confidence)), gaps, strict=True))
    for size in range(2, len(confidence) + 1):
        for members in itertools.combinations(range(len(confidence)), size):
            yield source.names | {
                "cascade": "-".join(map(str, members)),
                "√CvM of the marginals": float(marginal[list(members)].mean()),
                "gap of the copulas": float(np.mean([gap[pair] for pair in itertools.pairwise(members)])),
            }


def _gap(copula, x, y):
    present = jax.numpy.ones(x.shape, bool)
    u, v = (present_counts(values, present)[1] for values in (x, y))
    seen = empirical_copula(u, v, present)
    return jax.numpy.sqrt(jax.numpy.mean((seen - copula.cdf(u / (u.size + 1), v / (v.size + 1))) ** 2))
