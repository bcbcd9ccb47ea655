"""What the checks of copulas and of marginals share: laws at members of a family, and the report of those that fail."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

#: What a law yields: (its name, *the point, what the member gives there, by how much that is beyond what it allows).
Finding = tuple[Any, ...]


def worst(law: Callable[[Any], Iterable[Finding]], members: Sequence[Any], where: Callable[..., str]) -> Iterator[str]:
    """A line of text for each part of the law that fails: the first member for which it does, at its worst point.

    Args:
        law: of a member.
        members: of the family.
        where: the words for (member, *point).
    """
    told = set()
    for member in members:
        for name, *columns in law(member):
            *point, got, excess = np.broadcast_arrays(*(np.asarray(column, float) for column in columns))
            excess = np.where(np.isfinite(got), excess, np.inf)
            if excess.max() > 0 and name not in told:
                told.add(name)
                at = np.unravel_index(excess.argmax(), excess.shape)
                figure = f"{got[at]:.10g}, {excess[at]:.2g} beyond what is allowed"
                yield f"{name} fails at {where(member, *(column[at] for column in point))}: {figure}"


def untraceable(method: str, member: Any, points: dict[str, jax.Array], shapes: str) -> list[str]:
    """What fails before any law can be looked at: no cdf, or one that jax cannot trace or broadcast.

    Args:
        method: the name of the cdf.
        member: of the family.
        points: its arguments by name, which broadcast to (3, 2).
        shapes: the words for their shapes.
    """
    call = f"{method}({', '.join(points)})"
    try:
        shape = jax.eval_shape(lambda member, *x: getattr(member, method)(*x), member, *points.values()).shape
    except Exception as problem:  # whatever the user's code raises belongs into the report
        return [f"{call} cannot be traced by jax: {type(problem).__name__}: {str(problem).splitlines()[0]}"]
    return [] if shape == (3, 2) else [f"{call} of {shapes} has shape {shape}; it must have (3, 2)"]


def changed_by_flattening(family: type, member: Any) -> list[str]:
    """What fails of the round trip of a member as a pytree."""
    leaves, structure = jax.tree.flatten(member)
    again = jax.tree.unflatten(structure, leaves)
    if type(again) is family and jax.tree.leaves(again) == leaves:
        return []
    return ["flattening and unflattening it as a pytree gives something else"]


def raise_failures(family: type, kind: str, failures: Sequence[str]) -> None:
    """AssertionError with a line for each failure; nothing where there is none."""
    if failures:
        text = "\n".join(f"- {failure}" for failure in failures)
        raise AssertionError(f"{family.__name__} is no {kind} as it stands:\n{text}")
