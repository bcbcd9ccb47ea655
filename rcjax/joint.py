"""The Markov-copula model of a cascade's confidences: fitting it to a log, sampling from it, keeping it in a file.

Marginals (section 4.1 of the paper) joined by a copula for every pair of models (section 4.2); along a cascade the
confidences are a Markov chain (section 4.3).
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._arguments import check_arguments
from rcjax._checks import inside, load
from rcjax._checks import name as require_name
from rcjax._compile import compiled
from rcjax._dialects import spelt_otherwise
from rcjax._files import write_atomically
from rcjax._json import plain
from rcjax._model_file import FORMAT, SCHEMA, check_members, check_model, check_parameters
from rcjax._numerics import open_unit
from rcjax._reference import describe_reference
from rcjax._trees import part
from rcjax.calibration import Calibrator, Transform, calibrate_all
from rcjax.copulas import Copula, Gaussian, OneOf
from rcjax.estimation import fit_families
from rcjax.logs import Log, LogError
from rcjax.marginals import Marginal
from rcjax.margins import calibrate_log, fit_on_devices, marginals_of_log, pairs, taus_of_log
from rcjax.selection import FAMILIES, Criterion, pair_ranks, select_copulas

Method = Literal["tau", "likelihood"]


def positions(models: tuple[str, ...], names: Sequence[str]) -> tuple[int, ...]:
    """Where the names are among the models; ValueError for one that is not."""
    unknown = [name for name in names if name not in models]
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}; the models are {', '.join(models)}")
    return tuple(models.index(name) for name in names)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("calibrators", "marginals", "copulas", "cost"),
    meta_fields=("models", "details"),
)
@dataclasses.dataclass(frozen=True)
class CascadeModel:
    """Everything that was learnt from a log: one frozen pytree, differentiable in every array.

    k models in the order of `models`, that of the log fitted to; k(k − 1)/2 pairs in the order of `pairs(k)`.
    """

    calibrators: Calibrator  # leading axis k
    marginals: Marginal  # leading axis k
    copulas: Copula  # leading axis k(k − 1)/2
    cost: jax.Array  # (k,) expected cost of one answer, in the log's money
    models: tuple[str, ...]
    details: str = "{}"  # JSON: prices, and what was fitted on what (`provenance`)

    def calibrate(self, logprob: ArrayLike | Log) -> jax.Array:
        """(…, k) calibrated confidences of raw log-probabilities, in the order of this model's `models`.

        Of a log, whose columns are found by their names: (n, k), NaN where a model did not answer. A bare array (…, k)
        has no names: its last axis must be in the order of `models`, which is that of the log fitted to, and need not
        be that of another log. Raises LogError, a ValueError, for a log that lacks a model, ValueError for an array
        of another length.

        >>> import rcjax
        >>> model, log = rcjax.demo_model(), rcjax.sample_log(3, seed=0)
        >>> turned = log.select(log.models[::-1])
        >>> bool((model.calibrate(turned) == model.calibrate(log.logprob)).all())
        True
        """
        check_arguments(CascadeModel.calibrate, locals())
        if isinstance(logprob, Log):
            logprob = logprob.select(self.models).logprob
        logprob = jnp.asarray(logprob, dtype=self.cost.dtype)
        if logprob.shape[-1:] != (len(self.models),):
            raise ValueError(f"logprob has shape {logprob.shape}; its last axis must be the {len(self.models)} models")
        return calibrate_all(self.calibrators, logprob)

    def index(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of the named models; a name that is not a model's raises ValueError."""
        check_arguments(CascadeModel.index, locals())
        return positions(self.models, names)

    @property
    def provenance(self) -> dict[str, Any]:
        """What was fitted on what: hash and size of the log, versions, date."""
        return json.loads(self.details).get("provenance", {})

    @property
    def options(self) -> dict[str, Any]:
        """How it was fitted: `copula`, and `method` or `criterion`; empty where that was not recorded."""
        return json.loads(self.details).get("fit", {})

    @property
    def reference(self) -> dict[str, Any] | None:
        """Some queries of the log that it was fitted on, for later logs to be compared with (`rcjax.check_policy`)."""
        return json.loads(self.details).get("reference")

    @property
    def copula_table(self) -> list[dict[str, Any]] | None:
        """Every family on every pair, where `fit` chose among several: `pair`, `family`, `parameters`,
        `standard_errors`, `tau`, `log_likelihood`, `aic`, `delta_aic`, `cv_score`, `status`, `chosen`.
        """
        return json.loads(self.details).get("copulas")

    @property
    def prices(self) -> dict[str, Any] | None:
        """Money per million input and output tokens by model, where the log was priced by tokens."""
        return json.loads(self.details).get("prices")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON (numbers round-trip exactly); never leaves a half-written file."""
        write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the file of a model, for readers and writers in other languages.

        It is `rcjax/model.schema.json`. It accepts every model that `load_model` reads, but cannot say how long lists
        are, nor what a family of copulas has as parameters, and where these may lie; `load_model` checks it all.
        """
        return json.loads(resources.files("rcjax").joinpath("model.schema.json").read_text("utf-8"))

    def to_json(self) -> dict[str, Any]:
        """The model as JSON values; the inverse of `model_from_json`."""
        parts = {name: arrays_to_json(getattr(self, name)) for name in ("calibrators", "marginals")}
        return {
            "format": FORMAT,
            "schema_version": SCHEMA,
            "models": list(self.models),
            "transform": self.calibrators.transform,
            **parts,
            **_copulas_to_json(self.copulas),
            "cost": np.asarray(self.cost).tolist(),
            "details": json.loads(self.details),
        }


def _copulas_to_json(copulas):
    if isinstance(copulas, OneOf):
        members = [_copulas_to_json(member) for member in copulas.members]
        return {"copula": "OneOf", "copulas": {"index": np.asarray(copulas.index).tolist(), "members": members}}
    return {"copula": type(copulas).__name__, "copulas": arrays_to_json(copulas)}


def arrays_to_json(part: Any) -> dict[str, Any]:
    """Field → nested lists; infinities (a standard error that does not exist) become null."""
    data = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "transform"}
    return {name: plain(value) for name, value in data.items()}


def model_from_json(data: Any) -> CascadeModel:
    """A model from the object of `CascadeModel.to_json`; unknown keys are ignored, problems a ValueError."""
    models = check_model(data)
    return CascadeModel(
        calibrators=Calibrator(**_known(Calibrator, data["calibrators"]), transform=data["transform"]),
        marginals=Marginal(**_known(Marginal, data["marginals"])),
        copulas=_copulas_from_json(data, len(pairs(len(models)))),
        cost=jnp.asarray(data["cost"], jnp.result_type(float)),
        models=models,
        details=json.dumps(data.get("details", {})),
    )


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Field → array, of the fields that a class has."""
    return arrays_from_json({f.name: data[f.name] for f in dataclasses.fields(kind) if f.name != "transform"})


def _copulas_from_json(data: Mapping[str, Any], size: int) -> Copula:
    """The copulas of so many pairs; ValueError names the place of what is wrong with them."""
    name = require_name(data.get("copula"), "copula")
    if name != "OneOf":
        return _family_from_json(name, data.get("copulas"), size, "copulas")
    members = check_members(data.get("copulas"), size)
    return OneOf(
        jnp.asarray(data["copulas"]["index"], int),
        tuple(_family_from_json(*each, size, f"copulas.members[{i}].copulas") for i, each in enumerate(members)),
    )


def _family_from_json(name: str, parameters: Any, size: int, where: str) -> Copula:
    try:
        family = as_family(name)
    except ValueError as problem:
        raise ValueError(f"{where.removesuffix('s')}: {problem}") from None
    columns = check_parameters(parameters, where, tuple(f.name for f in dataclasses.fields(family)), size)  # type: ignore
    with inside(where):
        return family(**arrays_from_json(columns))


def arrays_from_json(part: Mapping[str, Any]) -> dict[str, Any]:
    """Field → array: the inverse of `arrays_to_json`."""

    def array(name, value):
        values = np.array(value, dtype=float)
        return jnp.asarray(np.where(np.isnan(values), np.inf, values), int if name == "status" else None)

    return {name: array(name, value) for name, value in part.items()}


def load_model(path: str | os.PathLike[str]) -> CascadeModel:
    """Read a model that `CascadeModel.save` wrote.

    Raises ValueError (file, place, problem) where it is not valid, OSError where it cannot be read.
    """
    check_arguments(load_model, locals())
    return load(path, model_from_json)


def fit(
    log: Log,
    *,
    copula: str | type[Copula] | Sequence[str | type[Copula]] = "gumbel",
    method: Method = "tau",
    criterion: Criterion = "aic",
    transform: Transform | Literal["auto"] = "auto",
    devices: Sequence[Any] | None = None,
) -> CascadeModel:
    """Fit the Markov-copula model to a log: calibrators, marginals, copulas of all pairs, costs.

    Calibrators and marginals learn from all of a model's answers, the copula of a pair from the queries that both
    answered. `copula` is a family's name or class, fitted by `method`: "tau" inverts Kendall's τ-b (the paper's),
    "likelihood" is exact for the point masses, which bias τ. With "auto", or several families, each pair takes the
    one that is best by `criterion`, "aic" or "cv" (see `selection.select_copulas`), fitted by likelihood;
    `CascadeModel.copula_table` tells how the others did. `transform` is that of the raw confidence ("auto": by the
    log's task). Arrays have jax's default float type.

    `devices`, such as `jax.devices()`, share the work, for logs of many queries: each holds a part of them, and what
    they exchange for calibrators and marginals is sums; Kendall's τ is computed for some of the pairs on each. The
    fitted model is that of one device, but for rounding. Likelihoods are computed on the first device.

    Raises LogError where a model has no answers, or a pair has no query in common; ValueError for a family, method or
    criterion that does not exist.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> model.models[0], model.copulas.theta.shape
    ('llama3.2-1b', (10,))
    """
    check_arguments(fit, locals())
    _check_overlap(log)
    if method not in ("tau", "likelihood"):
        raise ValueError(f"method is {method!r}; it is 'tau' or 'likelihood'")
    transform = log.task if transform == "auto" else transform
    arrays = log.logprob, log.correct, log.answered, transform
    shared = None if devices is None else fit_on_devices(*arrays, devices)
    if isinstance(copula, type) or (isinstance(copula, str) and copula != "auto"):
        calibrators, marginals, joined = fit_arrays(*arrays, as_family(copula), method, shared=shared)
        details = details_of(log, fit={"copula": as_family(copula).__name__, "method": method})
        return CascadeModel(calibrators, marginals, joined, log.cost, log.models, details)
    candidates = FAMILIES if copula == "auto" else tuple(as_family(each) for each in copula)
    calibrators, marginals, starts = fit_arrays(*arrays, Gaussian, "tau", shared=shared)
    confidence = calibrate_all(calibrators, log.logprob, log.answered)
    chosen = pairs(len(log.models))
    joined, table = select_copulas(marginals, confidence, log.answered, chosen, starts.tau(), candidates, criterion)
    named = [row | {"pair": [log.models[place] for place in chosen[row["pair"]]]} for row in table]
    settings = {"copula": [family.__name__ for family in candidates], "criterion": criterion}
    details = details_of(log, fit=settings, copulas=named)
    return CascadeModel(calibrators, marginals, joined, log.cost, log.models, details)


def refit(model: CascadeModel, log: Log) -> CascadeModel:
    """The model fitted to another log of its models, with the same options as the first time."""
    family = "auto" if isinstance(model.copulas, OneOf) else type(model.copulas)
    options = model.options or {"copula": family}
    return fit(log.select(model.models), transform=model.calibrators.transform, **options)


def fit_arrays(
    logprob: ArrayLike,
    correct: ArrayLike,
    answered: ArrayLike,
    transform: Transform,
    family: type[Copula] | Copula,
    method: Method = "tau",
    near: Marginal | None = None,
    shared: tuple[Calibrator, Marginal, jax.Array] | None = None,
) -> tuple[Calibrator, Marginal, Copula]:
    """The fit of arrays (n, k), step by step: each step is a compiled programme that later logs of this size share.

    With the marginals of a log `near` this one, mixtures are sought around theirs, which is quicker. In place of a
    family, the copulas of such a log: each pair keeps the family that it has there (by "tau"). `shared` is what
    devices have found together (`fit_on_devices`), which is then not computed again.
    """
    if shared is None:
        calibrators, confidence = calibrate_log(logprob, correct, answered, transform=transform)
        marginals = marginals_of_log(confidence, answered, near)
        taus = taus_of_log(confidence, answered)
    else:
        calibrators, marginals, taus = shared
        confidence = calibrate_all(calibrators, logprob, answered)
    if isinstance(family, Copula) or method == "tau":
        return calibrators, marginals, _from_taus(family, taus)
    return calibrators, marginals, _likeliest(marginals, confidence, answered, taus, family=family)


def fit_near(
    model: CascadeModel, logprob: ArrayLike, correct: ArrayLike, answered: ArrayLike, cost: jax.Array
) -> CascadeModel:
    """The model fitted to other arrays (n, k) much like its own, and costs (k,): `fit_arrays` near it."""
    how = model.calibrators.transform, model.copulas
    calibrators, marginals, copulas = fit_arrays(logprob, correct, answered, *how, near=model.marginals)
    return dataclasses.replace(model, calibrators=calibrators, marginals=marginals, copulas=copulas, cost=cost)


@partial(compiled, static_argnames="family")
def _likeliest(marginals, confidence, answered, taus, family):
    ranked = pair_ranks(marginals, confidence, answered, pairs(confidence.shape[1]))
    (found,) = fit_families((family,), *ranked, taus)
    return found.copula


def _from_taus(family, taus):
    if isinstance(family, OneOf):
        members = tuple(_from_taus(type(member), taus) for member in family.members)
        return dataclasses.replace(family, members=members)
    return _invert(taus, family=family if isinstance(family, type) else type(family))


@partial(compiled, static_argnames="family")
def _invert(taus, family):
    return jax.vmap(family.from_tau)(taus)


def sample_confidences(model: CascadeModel, key: jax.Array, n: int) -> jax.Array:
    """(n, k) calibrated confidences drawn from the chain through all models, in their order."""
    check_arguments(sample_confidences, locals())
    return _sample(model.marginals, model.copulas, key, n)


@partial(jax.jit, static_argnames="n")
def _sample(marginals, copulas, key, n):
    k = marginals.lowest.shape[0]
    place = {pair: p for p, pair in enumerate(pairs(k))}
    draws = open_unit(jax.random.uniform(key, (2, k, n), dtype=marginals.lowest.dtype))
    neighbours = np.array([place[j, j + 1] for j in range(k - 1)], int)
    links, before = part(copulas, neighbours), part(marginals, slice(-1))

    def advance(rank, step):
        marginal, copula, draw, shuffle = step
        rank = copula.inverse_conditional(open_unit(_shuffle_ties(marginal, rank, shuffle)), draw)
        return rank, rank

    _, later = jax.lax.scan(advance, draws[0, 0], (before, links, draws[0, 1:], draws[1, :-1]))
    ranks = jnp.concatenate([draws[0, :1], later])
    return jax.vmap(lambda marginal, rank: marginal.quantile(rank), out_axes=1)(marginals, ranks)


def _shuffle_ties(marginal, rank, draw):
    """A fresh rank within each point mass: the chain remembers a confidence, not where among its ties a query stood."""
    bottom, top = marginal.mass_lowest, 1 - marginal.mass_highest
    return jnp.where(rank <= bottom, bottom * draw, jnp.where(rank >= top, top + (1 - top) * draw, rank))


def as_family(name: str | type[Copula]) -> type[Copula]:
    """The copula class of a name, in any case and with or without hyphens; ValueError names the families there are.

    Every subclass of `Copula` that has been defined is known by its name, the user's own included.
    """
    if isinstance(name, type) and issubclass(name, Copula):
        return name
    known = {
        c.__name__.lower(): c for c in _subclasses(Copula) if c.__name__ not in ("ClosedForm", "OneOf", "Rotation")
    }
    key = str(name).lower().replace("_", "").replace("-", "")
    if key not in known:
        raise ValueError(
            f"unknown copula {name!r}; the families are {', '.join(sorted(known))}, or a subclass of rcjax.Copula, "
            "which must have been defined or imported before it is named"
        )
    return known[key]


def _subclasses(cls):
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def _check_overlap(log):
    answered = np.asarray(log.answered)
    for i, j in pairs(len(log.models)):
        if (answered[:, i] & answered[:, j]).sum() < 2:
            raise LogError(
                f"{log.source}: fewer than two queries were answered by both {log.models[i]} and {log.models[j]}; "
                f"their dependence cannot be estimated: {_advice_on_overlap(log, i, j)}"
            )


def _advice_on_overlap(log, i, j):
    one, other = ([log.queries[row] for row in np.flatnonzero(log.answered[:, j])] for j in (i, j))
    pair = spelt_otherwise(one, other)
    if pair is not None:
        return f"queries are written differently, {pair[0]!r} and {pair[1]!r}: name each of them in one way"
    return "log both on the same queries, or leave one of the two out (models=, on the command line --models)"


def details_of(log: Log, **more: Any) -> str:
    """What a model keeps of its log, as JSON: where it comes from, some queries, its prices."""
    from rcjax._provenance import describe_fit

    details = {"provenance": describe_fit(log), "reference": describe_reference(log), **more}
    if log.prices is not None:
        details["prices"] = {name: {"input": i, "output": o} for name, (i, o) in log.prices.items()}
    return json.dumps(details)
