"""Batched pytrees: every leaf has the same leading axis."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def part(tree: Any, index: Any) -> Any:
    """The entries of a batched pytree at an index, a slice or an array of indices of its leading axis.

    >>> import numpy as np
    >>> batch = {"mean": np.array([1.0, 2.0, 3.0]), "weights": np.eye(3)}
    >>> {name: leaf.tolist() for name, leaf in part(batch, 1).items()}
    {'mean': 2.0, 'weights': [0.0, 1.0, 0.0]}
    """
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stack(trees: Sequence[Any]) -> Any:
    """Pytrees of one shape as a batch of them, of numpy's arrays.

    >>> stack([{"mean": 1.0}, {"mean": 2.0}])["mean"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def varying_together(tree: Any) -> Any:
    """A pytree with zero added to its floats: under `jax.shard_map` all then vary over the same devices, as loops ask.

    >>> varying_together({"mean": jnp.array([1.0, 2.0]), "count": 3})["mean"].tolist()
    [1.0, 2.0]
    """
    leaves, structure = jax.tree.flatten(tree)
    floats = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]
    zero = jnp.zeros_like(sum(jnp.sum(leaf) for leaf, there in zip(leaves, floats, strict=True) if there))
    return structure.unflatten(
        [
            leaf + zero.astype(jnp.result_type(leaf)) if there else leaf
            for leaf, there in zip(leaves, floats, strict=True)
        ]
    )


#: From how many queries on things are computed one after the other: memory counts then, and each keeps all cores busy.
MANY = 2**16


def map_entries(function: Callable[..., Any], n: int, in_axes: Sequence[int]) -> Callable[..., Any]:
    """`jax.vmap` of a function of arrays with n entries; of `MANY` and more, `lax.map`, which holds one call at a time.

    >>> map_entries(lambda x, y: x @ y, 2, (0, 1))(jnp.eye(2), jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1.0, 4.0]
    """
    if n < MANY:
        return jax.vmap(function, in_axes)

    def one_by_one(*trees: jax.Array) -> Any:
        moved = (
            jax.tree.map(lambda leaf, axis=axis: jnp.moveaxis(leaf, axis, 0), t)
            for axis, t in zip(in_axes, trees, strict=True)
        )
        return lax.map(lambda arguments: function(*arguments), tuple(moved))

    return one_by_one
