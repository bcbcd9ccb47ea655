"""Plans: candidate cascades as arrays. Plans of one shape share a compiled program, whichever models they name."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rcjax.model.calibrated import pairs
from rcjax.model.cascade_model import CascadeModel
from rcjax.solving.frontier.policies import CascadeSet

#: Number of steps above which a plan's run takes longer than its compilation.
MANY_STEPS = 256

_SMALLEST = 4


def check_cascade(models: tuple[str, ...], cascade: Sequence[str]) -> tuple[int, ...]:
    """Positions of a cascade's models; ValueError if it is empty, names unknown models, or is out of order."""
    if isinstance(cascade, str) or not len(cascade):
        raise ValueError(f"a cascade is a non-empty tuple of model names, not {cascade!r}")
    unknown = [name for name in cascade if name not in models]
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}; the models are {', '.join(models)}")
    members = tuple(models.index(name) for name in cascade)
    if any(i >= j for i, j in itertools.pairwise(members)):
        raise ValueError(
            f"the cascade {' → '.join(cascade)} does not follow the model's order {' → '.join(models)}; "
            "read the log with models= in the order in which they are to be asked"
        )
    return members


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CascadePlan:
    """Candidate cascades as paths through the models; k models, N paths, E ends of paths, S steps, P pairs.

    Paths that share an end share its solution, which follows that of the shorter end to which it defers. Sizes are
    padded: padding repeats an entry, or writes to an unused end.
    """

    members: jax.Array  # (N + 1, k) bool; the last path asks, in turn, every model that any path asks
    links: jax.Array  # (N + 1, P) bool, the pairs (i, j) in which i defers to j
    first: jax.Array  # (N + 1,) model asked first
    last: jax.Array  # (N + 1,) model that answers every query that reaches it
    ends: jax.Array  # (N,) number of the end that is the entire path
    heads: jax.Array  # (E,) first model of an end
    steps: jax.Array  # (S, 3) (an end of at least two models, the end to which it defers, the pair), shorter ends first
    count: jax.Array  # () number of steps without padding
    cuts: jax.Array  # (E, k) step that cuts each model of an end; −1: the model does not defer
    pairs: jax.Array  # (P,) number of each pair among all pairs of the k models
    prefixes: jax.Array  # () bool, whether every prefix of a path is a path

    @property
    def defers(self) -> jax.Array:
        """Whether a member defers; (N + 1, k) bool."""
        return self.members & ~self.stops

    @property
    def stops(self) -> jax.Array:
        """Whether a model is the last of its path, which answers or refuses; (N + 1, k) bool."""
        return np.arange(self.members.shape[-1]) == self.last[:, None]


def make_plan(paths: Sequence[tuple[int, ...]], k: int) -> CascadePlan:
    """Build the plan of distinct paths, each of rising positions among k models."""
    all_models = tuple(sorted({j for path in paths for j in path}))
    ends = sorted({path[i:] for path in paths for i in range(len(path))}, key=lambda end: (len(end), -end[0], end))
    used = sorted({link for path in [*paths, all_models] for link in itertools.pairwise(path)})
    row, column = ({item: index for index, item in enumerate(items)} for items in (ends, used))
    steps = _fill(
        [(row[end], row[end[1:]], column[end[:2]]) for end in ends if len(end) > 1],
        2**k - 1 - k,
        (len(ends), len(ends), 0),
    )
    heads = _fill([*(end[0] for end in ends), 0], 2**k, 0, 2 * _SMALLEST)
    filled = [*_fill(list(paths), 2**k - 1, paths[0]), all_models]
    cuts = np.full((len(heads), k), -1)
    writes = {end: step for step, (end, *_) in enumerate(steps)}
    for end in ends:
        cuts[row[end], list(end[:-1])] = [writes[row[end[i:]]] for i in range(len(end) - 1)]
    indices = [pairs(k).index(pair) for pair in _fill(used, k * (k - 1) // 2, used[0] if used else None)]
    links = np.zeros((len(filled), len(indices)), bool)
    for number, path in enumerate(filled):
        links[number, [column[link] for link in itertools.pairwise(path)]] = True
    arrays = {
        "members": np.array([[j in path for j in range(k)] for path in filled]),
        "links": links,
        "first": np.array([path[0] for path in filled]),
        "last": np.array([path[-1] for path in filled]),
        "ends": np.array([row[path] for path in filled[:-1]]),
        "heads": np.array(heads),
        "steps": np.array(steps, int).reshape(-1, 3),
        "count": np.array(sum(len(end) > 1 for end in ends)),
        "cuts": cuts,
        "pairs": np.array(indices, int),
        "prefixes": np.array({path[:-1] for path in paths if len(path) > 1} <= set(paths)),
    }
    return CascadePlan(**jax.device_put(arrays))


def plan_cascades(model: CascadeModel, cascades: CascadeSet, max_length: int | None = None) -> CascadePlan | None:
    """Build the plan of a search of `solve_frontier`; None for adaptive policies."""
    paths = candidate_paths(model.models, cascades, max_length)
    return None if paths is None else make_plan(paths, len(model.models))


def candidate_paths(
    models: tuple[str, ...], cascades: CascadeSet, max_length: int | None = None
) -> list[tuple[int, ...]] | None:
    """Positions of the models of each cascade of a search; None for adaptive policies.

    >>> candidate_paths(("small", "large"), "all")
    [(0,), (1,), (0, 1)]
    """
    k = len(models)
    everything = tuple(range(k))
    if isinstance(cascades, str):
        if cascades == "adaptive":
            return None
        if cascades == "full":
            return [everything]
        if cascades != "all":
            raise ValueError(f"cascades is {cascades!r}; it is 'all', 'full', 'adaptive' or a list of cascades")
        longest, number = min(max_length or k, k), 2**k - 1
        if number >= 2**13 - 1 and longest > 4:
            advice = "name fewer models (--models), or search 'adaptive' (--cascade adaptive)"
            raise ValueError(
                f"{k} models have {number:,} subcascades: {advice}; from Python, max_length up to 4 will do"
            )
        return [path for size in range(1, longest + 1) for path in itertools.combinations(everything, size)]
    paths = [check_cascade(models, (path,) if isinstance(path, str) else path) for path in cascades]
    if not paths:
        raise ValueError("cascades is empty: name at least one cascade")
    return list(dict.fromkeys(paths))


def _fill(items: list, most: int, filler: Any, least: int = _SMALLEST) -> list:
    """Pad a list to the next power of two, `most` at most, so that few sizes occur."""
    size = min(most, max(least, 1 << (len(items) - 1).bit_length())) if items else 0
    return items + [filler] * (size - len(items))
