"""An embedded example: a fitted model of five LLMs, and synthetic logs of any size drawn from it.

`demo.json` holds parameters that `rcjax.fit` computed from a log of five Llama models on MMLU, by
`benchmarks/make_demo.py`; no row of that log is in the package.
"""

import json
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.tokens import Price
from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax.logs.log import Log
from rcjax.model import chain
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel, model_from_json


def demo_model() -> CascadeModel:
    """The embedded model: five Llama models on multiple-choice questions, priced in dollars per query.

    >>> demo_model().models
    ('llama3.2-1b', 'llama3.2-3b', 'llama3.1-8b', 'llama3.1-70b', 'llama3.1-405b')
    """
    return model_from_json(_content())


def sample_log(n: int = 1000, seed: int = 0) -> Log:
    """A SYNTHETIC log of n ≥ 2 queries, all five models asked on each, drawn from `demo_model()`.

    No answer in it was given by an LLM. Confidences follow the model's chain; each model is right with the
    probability that its calibrated confidence says, independently of the others given the confidences; a call
    costs the model's mean cost times the query's length, lognormal with mean one and shared by all models.
    The same `n` and `seed` give the same log, in each precision of floats. Raises ValueError for n < 2.

    >>> log = sample_log(500, seed=1)
    >>> log.logprob.shape, log.source
    ((500, 5), 'rcjax demo (synthetic)')
    """
    if n < 2:
        raise ValueError(f"n is {n}; a log needs at least 2 queries")
    content = _content()
    model = model_from_json(content)
    variation = np.float64(content["demo"]["length_variation"])
    for_confidence, *others = jax.random.split(jax.random.key(seed), 3)
    uniform = np.asarray(jax.random.uniform(for_confidence, (2, len(model.models), 1, n)))
    columns = _draw(model, variation, others, *fill_up(uniform, axis=-1))
    logprob, correct, query_cost = (np.asarray(column)[:n] for column in columns)
    prices = {name: Price(**price) for name, price in (model.prices or {}).items()}
    return Log(
        models=model.models,
        logprob=jnp.asarray(logprob),
        correct=jnp.asarray(correct),
        query_cost=jnp.asarray(query_cost),
        answered=jnp.asarray(np.ones(correct.shape, bool)),
        cost=jnp.asarray(query_cost.mean(0, dtype=np.float64), model.cost.dtype),
        queries=tuple(range(n)),
        task="choice",
        source="rcjax demo (synthetic)",
        prices=prices,
    )


def _content() -> dict[str, Any]:
    return json.loads((resources.files("rcjax.model") / "demo.json").read_text("utf-8"))


@compiled
def _draw(
    model: CascadeModel, variation: jax.Array, keys: list[jax.Array], uniform: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(n, k) log-probabilities, answers right or wrong, and costs, of uniform numbers (2, k, 1, n) and two more keys.

    What is drawn of a query depends on its row alone, so those that fill a log up change no other.
    """
    for_answer, for_length = keys
    confidence = chain.from_uniform(chain.through(model.marginals, model.copulas), uniform)
    logprob = jax.vmap(Calibrator.inverse, in_axes=(0, 1), out_axes=1)(model.calibrators, confidence)
    correct = jax.random.bernoulli(for_answer, confidence)
    # The lognormal with this variance of its logarithm has the coefficient of variation asked for.
    variance = jnp.log1p(jnp.asarray(variation, model.cost.dtype) ** 2)
    normal = jax.random.normal(for_length, confidence.shape[:1], model.cost.dtype)
    length = jnp.exp(jnp.sqrt(variance) * normal - variance / 2)
    return logprob, correct, length[:, None] * model.cost
