"""Laws checked at members of a family, and the report of failed ones: shared by checks of copulas and marginals."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

#: A law yields findings: (name, *coordinates of the points, values there, their excess over what the law allows).
Finding = tuple[Any, ...]


def worst(law: Callable[[Any], Iterable[Finding]], members: Sequence[Any], where: Callable[..., str]) -> Iterator[str]:
    """Describe each failed part of a law in a line: the first member at which it fails, at its worst point.

    Args:
        law: function from a member to its findings.
        members: members of the family.
        where: function from (member, *point) to words.
    """
    reported = set()
    for member in members:
        for name, *columns in law(member):
            *point, got, excess = np.broadcast_arrays(*(np.asarray(column, float) for column in columns))
            excess = np.where(np.isfinite(got), excess, np.inf)
            if excess.max() > 0 and name not in reported:
                reported.add(name)
                at = np.unravel_index(excess.argmax(), excess.shape)
                figure = f"{got[at]:.10g}, {excess[at]:.2g} beyond what is allowed"
                yield f"{name} fails at {where(member, *(column[at] for column in point))}: {figure}"


def untraceable(method: str, member: Any, points: dict[str, jax.Array], shapes: str) -> list[str]:
    """List the failures that keep any law from being checked: no cdf, or a cdf that JAX cannot trace or broadcast.

    Args:
        method: name of the cdf.
        member: member of the family.
        points: arguments of the cdf by name, which broadcast to (3, 2).
        shapes: words for their shapes.
    """
    call = f"{method}({', '.join(points)})"
    try:
        shape = jax.eval_shape(lambda member, *x: getattr(member, method)(*x), member, *points.values()).shape
    except Exception as problem:  # the report shows whatever the user's code raises
        return [f"{call} cannot be traced by jax: {type(problem).__name__}: {str(problem).splitlines()[0]}"]
    return [] if shape == (3, 2) else [f"{call} of {shapes} has shape {shape}; it must have (3, 2)"]


def changed_by_flattening(family: type, member: Any) -> list[str]:
    """List the failures of the round trip of a member as a pytree."""
    leaves, structure = jax.tree.flatten(member)
    rebuilt = jax.tree.unflatten(structure, leaves)
    if type(rebuilt) is family and jax.tree.leaves(rebuilt) == leaves:
        return []
    return ["flattening and unflattening it as a pytree gives something else"]


def raise_failures(family: type, kind: str, failures: Sequence[str]) -> None:
    """Raise an AssertionError with a line for each failure, if there are any."""
    if failures:
        text = "\n".join(f"- {failure}" for failure in failures)
        raise AssertionError(f"{family.__name__} is no {kind} as it stands:\n{text}")
