"""Batched pytrees: every leaf has the same leading axis."""

from typing import Any

import jax


def part(tree: Any, place: Any) -> Any:
    """The entries of a batched pytree at a place (an index, slice or array) of its leading axis.

    >>> import numpy as np
    >>> batch = {"mean": np.array([1.0, 2.0, 3.0]), "weights": np.eye(3)}
    >>> {name: leaf.tolist() for name, leaf in part(batch, 1).items()}
    {'mean': 2.0, 'weights': [0.0, 1.0, 0.0]}
    """
    return jax.tree.map(lambda leaf: leaf[place], tree)
