"""The frontier as a program that is traced ahead of time, for a service that cannot wait for it.

Of the seconds before the first frontier of a process, tracing is in the file of `export_solver`, and compiling in JAX's
persistent compilation cache, where that is switched on. The program is StableHLO, which jax promises to run six months
of its versions later (https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from rcjax._base.arguments import check_arguments
from rcjax._base.files import write_atomically
from rcjax.copulas.families import as_family
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies
from rcjax.frontier.searches import Search
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.pairs import pairs
from rcjax.solving.at_lambda import adaptive_points, lay_out, optimise, points_at
from rcjax.solving.lambda_grid import check_lam, select
from rcjax.solving.paths import pair_places, plan_cascades

_FORMAT, _SCHEMA = "rcjax-solver", 1


@dataclasses.dataclass(frozen=True)
class Solver:
    """A program that solves the frontier of any model of one kind: call it with the model, and with as many λ."""

    models: tuple[str, ...]
    copula: str
    lam: tuple[float, ...]  # for which it solves where no others are given
    search: Any
    _exported: jax_export.Exported

    def __call__(self, model: CascadeModel, lam: Any = None) -> Frontier:
        """The frontier of `solve_frontier(model, lam=lam)`, without its tracing.

        Raises ValueError for a model of other models, another copula or float type than the program is for, or another
        number of λ.
        """
        prices = check_lam(self.lam if lam is None else lam)
        kind = {"models": model.models, "copula": type(model.copulas).__name__, "dtype": str(model.cost.dtype)}
        dtype = str(self._exported.in_avals[-1].dtype)
        for name, value in {"models": self.models, "copula": self.copula, "dtype": dtype}.items():
            if kind[name] != value:
                raise ValueError(
                    f"the {name} of this model is {kind[name]}, and the solver is for {value}: export another"
                )
        if len(prices) != len(self.lam):
            raise ValueError(f"{len(prices)} λ were given, and the solver is for {len(self.lam)}: export another")
        leaves = jax.tree.leaves((model.marginals, model.copulas, model.cost))
        solved = _call(self._exported)(*leaves, jnp.asarray(prices, model.cost.dtype))
        arrays = {name: np.asarray(value) for name, value in solved.items()}
        return make_frontier(model, select(_points(arrays), None), search=self.search)


def _points(arrays: dict[str, np.ndarray]) -> Points:
    """Of what the program gives by name: jax can export dictionaries of arrays."""
    members = arrays["members"]
    if "thresholds" in arrays:
        policies = Policies.of_cascades(arrays["thresholds"], members)
    else:
        policies = Policies(arrays["first"], arrays["bounds"], arrays["actions"], members)
    expected = Outcomes(arrays["error"], arrays["cost"], np.zeros_like(arrays["error"]))
    return Points(arrays["lam"], arrays["status"], expected, policies)


def _arrays(points: Points) -> dict[str, jax.Array]:
    """What `_points` takes."""
    own = points.policies
    names = ("first", "members", *(("bounds", "actions") if own.thresholds is None else ("thresholds",)))
    figures = {"lam": points.lam, "status": points.status, "error": points.expected.wrong, "cost": points.expected.cost}
    return figures | {name: getattr(own, name) for name in names}


def _call(exported: jax_export.Exported) -> Callable[..., dict[str, jax.Array]]:
    return jax.jit(exported.call)


def export_solver(
    model: CascadeModel,
    path: str | os.PathLike[str],
    *,
    lam: Any,
    cascades: Search = "all",
    max_length: int | None = None,
    platforms: Sequence[str] | None = None,
) -> None:
    """Write the program that solves the frontier of models like this one: of these names, copula and float type.

    `load_solver` reads it; both need `rcjax[export]`.

    Args:
        model: a fitted model.
        path: the file to write.
        lam, cascades, max_length: as `solve_frontier` takes them.
        platforms: such as ("cpu", "cuda") where the program is to run elsewhere than here.

    Raises ValueError as `solve_frontier` does, and for a model whose pairs have different families.
    """
    check_arguments(export_solver, locals())
    _require_flatbuffers()
    family, prices = type(model.copulas), check_lam(lam)
    if family.__name__ == "OneOf":
        raise ValueError("the pairs of this model have different copulas: fit it with one family to export a solver")
    plan = plan_cascades(model, cascades, max_length)
    inputs = (model.marginals, model.copulas, model.cost)
    leaves, structure = jax.tree.flatten(inputs)
    k = len(model.models)

    def solve(*arguments: jax.Array) -> dict[str, jax.Array]:
        marginals, copulas, cost = jax.tree.unflatten(structure, arguments[:-1])
        lam = arguments[-1]
        if plan is None:
            left, right = np.array(pairs(k), int).reshape(-1, 2).T
            tables = lay_out(marginals, copulas, cost, (left, right, np.arange(len(left))))
            return _arrays(adaptive_points(marginals, tables, lam))
        tables = lay_out(marginals, copulas, cost, (plan.left, plan.right, pair_places(plan, k)))
        return _arrays(points_at(marginals, tables, optimise(tables, lam, plan, "exact"), plan, "exact"))

    shapes = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves]
    wanted = jax.ShapeDtypeStruct(prices.shape, model.cost.dtype)
    exported = jax_export.export(jax.jit(solve), platforms=platforms)(*shapes, wanted)
    head = {
        "format": _FORMAT,
        "schema_version": _SCHEMA,
        "models": list(model.models),
        "copula": family.__name__,
        "lam": prices.tolist(),
        "search": cascades if isinstance(cascades, str) else [list(path) for path in cascades],
    }
    write_atomically(path, json.dumps(head).encode() + b"\n" + bytes(exported.serialize()))


def _require_flatbuffers() -> None:
    if importlib.util.find_spec("flatbuffers") is None:  # in which jax writes and reads programs
        raise ImportError("solvers are written and read with flatbuffers: pip install 'rcjax[export]'")


def load_solver(path: str | os.PathLike[str]) -> Solver:
    """Read what `export_solver` wrote; ValueError where it is something else, or damaged.

    >>> import rcjax, tempfile, pathlib
    >>> model = rcjax.fit(rcjax.sample_log(100, seed=0).select(("llama3.2-1b", "llama3.1-8b")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rcjax.export_solver(model, pathlib.Path(folder) / "solver", lam=[10.0, 1000.0])
    ...     solver = rcjax.load_solver(pathlib.Path(folder) / "solver")
    >>> bool(abs(solver(model).error - rcjax.solve_frontier(model, lam=[10.0, 1000.0]).error).max() < 1e-5)
    True
    """
    check_arguments(load_solver, locals())
    _require_flatbuffers()
    with open(path, "rb") as file:
        line, program = file.readline(), file.read()
    try:
        head = json.loads(line)
        if head.get("format") != _FORMAT:
            raise ValueError("it is no solver of rcjax")
        if head.get("schema_version") != _SCHEMA:
            raise ValueError(f"schema_version is {head.get('schema_version')!r}; this rcjax reads {_SCHEMA}")
        as_family(head["copula"])
        exported = jax_export.deserialize(bytearray(program))
        models, prices = tuple(head["models"]), tuple(head["lam"])
        return Solver(models, head["copula"], prices, head["search"], exported)
    except Exception as error:  # the parser of programs has errors of its own
        raise ValueError(f"{os.fspath(path)}: cannot be read as a solver: {error}") from None
