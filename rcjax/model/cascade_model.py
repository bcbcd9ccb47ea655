"""The Markov-copula model of a cascade's confidences as a frozen pytree, its file, and an embedded example.

Copulas of all pairs (section 4.2 of the paper) join the marginals (section 4.1); along a cascade the confidences are a
Markov chain (section 4.3). The example, `demo.json`, holds parameters fitted to a log of five Llama models on MMLU
(`benchmarks/make_demo.py`); the package holds no row of that log.
"""

import dataclasses
import json
import os
from functools import partial
from importlib import resources
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.codec import (
    Amount,
    Between,
    Names,
    Object,
    Positive,
    Record,
    Share,
    check_fields,
    check_header,
    load_json,
    prefix_place,
    read_list,
    read_value,
    require,
    whole_number,
)
from rcjax._base.figures import choose_unit, count
from rcjax._base.tokens import Price
from rcjax._core.batching import as_json_values, list_pairs, pad_to_size_class, unstack
from rcjax._core.compilation import compiled, is_traced
from rcjax.copulas import Copula
from rcjax.copulas.families import as_family
from rcjax.logs.log import Log
from rcjax.model.calibrated_models import FORMAT, CalibratedModels, FitRecord, FittedModel
from rcjax.model.calibration import CalibrationStatus, Calibrator
from rcjax.model.likelihood import Chain
from rcjax.model.marginals import Atoms, Marginal
from rcjax.model.stated import SIZES, pad_rows
from rcjax.policy.decisions import Calibration


def _check_length(value: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    require(len(value) <= SIZES[-1], place, f"must have at most {SIZES[-1]}", len(value))
    return value


@dataclasses.dataclass(frozen=True)
class CalibratorFile(Calibration):
    """Calibrator of one model in a model file."""

    slope_p: Share | None = None
    status: Annotated[int, Between(0, max(CalibrationStatus))] = 0

    def __post_init__(self) -> None:
        Calibration.__post_init__(self)
        _check_length(self.stated or (), "stated")


@dataclasses.dataclass(frozen=True)
class MarginalFile(Record):
    """Marginal of one model in a model file."""

    lowest: Share
    highest: Share
    mass_lowest: Share
    mass_highest: Share
    proportion: tuple[Share, Share]
    a: tuple[Positive, Positive]
    b: tuple[Positive, Positive]
    atoms: Annotated[tuple[tuple[Share, Share], ...], _check_length] | None = None
    """(value, mass) of each atom."""


@dataclasses.dataclass(frozen=True)
class ModelFile(Record):
    """The file of a `CascadeModel`, or, without marginals and copulas, of a `CalibratedModels`."""

    models: Names
    calibrators: tuple[CalibratorFile, ...]
    cost: tuple[Amount, ...]
    marginals: tuple[MarginalFile, ...] | None = None
    copula: str | None = None
    copulas: Object | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("calibrators", "cost", "marginals"):
            value, k = getattr(self, name), len(self.models)
            require(value is None or len(value) == k, name, f"must be a list of {k}", value)


def calibrators_from_json(data: Any) -> Calibrator:
    """Read the calibrators that `calibrators_to_json` wrote."""
    files: tuple[CalibratorFile, ...] = read_value(tuple[CalibratorFile, ...], data, "calibrators")
    transforms = {file.transform for file in files}
    require(len(transforms) == 1, "calibrators", "must have one transform", sorted(transforms))
    slope_p = np.array([file.slope_p for file in files], float)  # None is NaN
    status = np.array([file.status for file in files])
    calibrators: Any = Calibrator.from_calibrations(files, jnp.result_type(float))
    return jax.device_put(dataclasses.replace(calibrators, slope_p=slope_p, status=status))


def marginals_to_json(marginals: Marginal) -> list[dict[str, Any]]:
    """Return the marginal of each model as JSON, its atoms without padding."""
    return [_marginal_to_json(marginal) for marginal in unstack(marginals)]


def _marginal_to_json(marginal: Marginal) -> dict[str, Any]:
    data = {name: as_json_values(values) for name, values in vars(marginal).items() if name != "atoms"}
    if marginal.atoms is None:
        return data
    atoms = zip(as_json_values(marginal.atoms.value), as_json_values(marginal.atoms.mass), strict=True)
    return data | {"atoms": [[value, mass] for value, mass in atoms if mass > 0]}


def marginals_from_json(data: Any, calibrators: Calibrator) -> Marginal:
    """Read the marginals that `marginals_to_json` wrote, with atoms padded to the number of stated values."""
    files: tuple[MarginalFile, ...] = read_value(tuple[MarginalFile, ...], data, "marginals")
    dtype = jnp.result_type(float)
    names = [field.name for field in dataclasses.fields(Marginal) if field.name != "atoms"]
    columns: dict[str, Any] = {name: np.array([getattr(file, name) for file in files], dtype) for name in names}
    rows = [file.atoms or () for file in files]
    places = 0 if calibrators.stated_logprobs is None else calibrators.stated_logprobs.shape[-1]
    if places or any(rows):
        size = max(places, *map(len, rows)) if places else None
        value = pad_rows([[value for value, _ in row] for row in rows], np.inf, size)
        mass = pad_rows([[mass for _, mass in row] for row in rows], 0.0, size)
        value = np.minimum(value, columns["highest"][:, None])
        columns["atoms"] = Atoms(value.astype(dtype), mass.astype(dtype))  # pyright: ignore
    return jax.device_put(Marginal(**columns))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("calibrators", "marginals", "copulas", "cost"),
    meta_fields=("models",),
    drop_fields=("record",),
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CascadeModel(FittedModel):
    """A fitted Markov-copula model: a frozen pytree, differentiable in every array.

    It has k models in the order of `models`, which is that of the training log, and k(k − 1)/2 pairs in the order of
    `list_pairs(k)`.

    The provenance (`record`) is not part of the pytree. Two fits of the same models and families then have one
    structure: they stack, meet in `lax.cond`, and share compiled programs. Transformations such as `jax.tree.map` and
    `jax.jit` drop it; `dataclasses.replace(result, record=model.record)` restores it.
    """

    calibrators: Calibrator  # leading axis k
    marginals: Marginal  # leading axis k
    copulas: Copula  # leading axis k(k − 1)/2
    cost: jax.Array  # (k,) expected cost of one answer, in the log's money
    models: tuple[str, ...]
    record: FitRecord = dataclasses.field(default_factory=FitRecord)  # provenance, and tables of the fit

    def __repr__(self) -> str:
        """Describe each model in a line: its mean cost, and the range of its confidence.

        >>> import rcjax
        >>> print(str(rcjax.demo_model()).splitlines()[1])
        llama3.2-1b    $18.2 per million queries  confidence ... to ...
        """
        source = f", fitted to {self.provenance['source']}" if "source" in self.provenance else ""
        head = f"{type(self).__name__} of {count(len(self.models), 'model')}{source}"
        if is_traced(jax.tree.leaves(self)) or jnp.ndim(self.cost) != 1:
            return f"{head}: {', '.join(self.models)}, with costs of shape {jnp.shape(self.cost)}"
        costs = np.asarray(self.cost, float).tolist()
        width = max(map(len, self.models))
        ends = (np.asarray(end) for end in (self.marginals.lowest, self.marginals.highest))
        money = choose_unit(costs)
        rows = [
            f"{name:{width}}  {money.full(cost)}  confidence {low:.2f} to {high:.2f}"
            for name, cost, low, high in zip(self.models, costs, *ends, strict=True)
        ]
        return "\n".join([head, *rows])

    def log_prob(self, confidence: jax.Array, *, clip: bool = False) -> jax.Array:
        """Return the log density of calibrated confidences under the chain through all models, in their order: (…).

        The function is pure, and differentiable in the confidences and in the model. A confidence at a point mass of
        its model (φ_min, φ_max, a stated value) counts with its probability, and a confidence in the smooth part with
        its density (`rcjax.model.likelihood`). Values of log p are comparable if they lie in the same masses; their
        mean is not an entropy. Leading axes of the model broadcast against (…). Raises ValueError unless the last axis
        is k.

        Args:
            confidence: (…, k) calibrated confidence; NaN gives NaN.
            clip: whether confidences below φ_min count as φ_min, and those above φ_max as φ_max. Models can then be
                compared on held-out queries, 2 to 3 % of which lie beyond an end. Otherwise, and if the end has no
                mass, log p is −∞ there.

        >>> import rcjax
        >>> model = rcjax.demo_model()
        >>> confidence = model.sample(jax.random.key(0), (3,))
        >>> model.log_prob(confidence).shape, model.log_prob(confidence - 1).tolist()
        ((3,), [-inf, -inf, -inf])
        >>> bool(jnp.isfinite(model.log_prob(confidence - 1, clip=True)).all())
        True
        """
        return self.chain.log_prob(confidence, clip=clip)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw calibrated confidences from the chain through all models, in their order: (*shape, k).

        The function is pure. Leading axes of the model come after `shape`, as in NumPyro: (*shape, *axes, k).

        >>> import rcjax
        >>> rcjax.demo_model().sample(jax.random.key(0), (3,)).shape
        (3, 5)
        """
        return self.chain.sample(key, tuple(shape))

    @property
    def chain(self) -> Chain:
        """The chain of the confidences through all models, in their order."""
        return Chain.through(self.marginals, self.copulas)

    def _dependence(self) -> dict[str, Any]:
        return {
            "marginals": marginals_to_json(self.marginals),
            "copula": type(self.copulas).__name__,
            "copulas": as_json_values(vars(self.copulas)),
        }


def model_from_json(data: Any) -> CascadeModel:
    """Read a model from the object of `CascadeModel.to_json`, ignoring unknown keys; ValueError for an invalid one."""
    model = fitted_from_json(data)
    if not isinstance(model, CascadeModel):
        raise ValueError(
            "a file of calibrators without marginals and copulas, as a search by labels saves: "
            "save the model of rcjax.fit(log), and load its file"
        )
    return model


def fitted_from_json(data: Any) -> FittedModel:
    """Read a `CascadeModel`, or a `CalibratedModels` if the file has no marginals and copulas."""
    check_header(data, FORMAT)
    file: ModelFile = read_value(ModelFile, data, "")
    calibrators = calibrators_from_json(file.calibrators)
    cost = jnp.asarray(file.cost, jnp.result_type(float))
    record = FitRecord.from_json(data.get("record", {}))
    if (file.marginals, file.copula, file.copulas) == (None, None, None):
        return CalibratedModels(calibrators, cost, file.models, record)
    return CascadeModel(
        calibrators=calibrators,
        marginals=marginals_from_json(file.marginals, calibrators),
        copulas=_copulas_from_json(file.copula, file.copulas, len(list_pairs(len(file.models)))),
        cost=cost,
        models=file.models,
        record=record,
    )


def _copulas_from_json(name: Any, parameters: Any, size: int) -> Copula:
    """Read the copulas of all `size` pairs: the name of their family, and their parameters."""
    name = read_value(str, name, "copula")
    try:
        family: Any = as_family(name)
    except ValueError as problem:
        raise ValueError(f"copula: {problem}") from None
    values = read_value(Object, parameters, "copulas")
    columns = {
        field.name: read_list(float, values.get(field.name), f"copulas.{field.name}", size)
        for field in dataclasses.fields(family)
    }
    with prefix_place("copulas"):
        return family(**{name: jnp.asarray(column) for name, column in columns.items()})


def load_model(path: str | os.PathLike[str]) -> CascadeModel:
    """Read a model that `CascadeModel.save` wrote.

    Raises ValueError (file, place, problem) if the file is invalid, OSError if it cannot be read.
    """
    return load_json(path, model_from_json)


def demo_model() -> CascadeModel:
    """Return the embedded model: five Llama models on multiple-choice questions, priced in dollars per query.

    >>> demo_model().models
    ('llama3.2-1b', 'llama3.2-3b', 'llama3.1-8b', 'llama3.1-70b', 'llama3.1-405b')
    """
    return model_from_json(_content())


def sample_log(n: int = 1000, seed: int = 0) -> Log:
    """Draw a SYNTHETIC log of n ≥ 2 queries with answers of all five models from `demo_model()`.

    No LLM gave these answers. Confidences follow the model's chain. Labels are independent given the confidences, each
    right with the probability of its calibrated confidence. A call costs the model's mean cost times the query's
    length, which is lognormal with mean 1 and shared by all models. The same `n` and `seed` give the same log, for each
    float precision. Raises ValueError for n < 2.

    >>> log = sample_log(300, seed=1)
    >>> log.logprob.shape, log.source
    ((300, 5), 'rcjax demo (synthetic)')
    """
    n = whole_number(n, "n", 2)
    content = _content()
    model = model_from_json(content)
    variation = np.float64(content["demo"]["length_variation"])
    for_confidence, *others = jax.random.split(jax.random.key(seed), 3)
    uniform = np.asarray(jax.random.uniform(for_confidence, (2, len(model.models), n)))
    columns = _draw(model, variation, others, *pad_to_size_class(uniform, axis=-1))
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
    """Draw log-probabilities, labels and costs, each (n, k), from uniform numbers (2, k, n) and two more keys.

    A query's draws depend on its row alone, so that padding changes no other row.
    """
    for_answer, for_length = keys
    confidence = model.chain.from_uniform(uniform)
    logprob = jax.vmap(Calibrator.inverse, in_axes=(0, 1), out_axes=1)(model.calibrators, confidence)
    correct = jax.random.bernoulli(for_answer, confidence)
    # A lognormal with this variance of the logarithm has the wanted coefficient of variation.
    variance = jnp.log1p(jnp.asarray(variation, model.cost.dtype) ** 2)
    normal = jax.random.normal(for_length, confidence.shape[:1], model.cost.dtype)
    length = jnp.exp(jnp.sqrt(variance) * normal - variance / 2)
    return logprob, correct, length[:, None] * model.cost
