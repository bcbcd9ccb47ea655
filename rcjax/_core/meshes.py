"""Functions of arrays that are sharded over an explicit mesh, the default of `jax.make_mesh`.

With explicit axes every operation must state the sharding of its result, which the loops and gathers of a search do
not. So a function runs with automatic axes, for which the compiler chooses the shardings of intermediate results, and
its result gets the sharding of an argument.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def automatic(function: Callable[..., Any], *arguments: Any, like: Any = None, trailing: int = 0) -> Any:
    """Return function(*arguments), also if some arrays are sharded over an explicit mesh.

    Args:
        function: function that returns a pytree of arrays with the leading axes of `like`, and closes over no array of
            an explicit mesh.
        arguments: pytrees of arrays.
        like: array whose sharding the result gets; None to replicate the result on every device.
        trailing: number of last axes of `like` that the result lacks.

    >>> float(automatic(jax.numpy.sum, jax.numpy.arange(3.0)))
    3.0
    """
    meshes = [jax.sharding.get_abstract_mesh(), *(_mesh(leaf) for leaf in jax.tree.leaves(arguments))]
    mesh = next((one for one in meshes if not one.empty and AxisType.Explicit in one.axis_types), None)
    if mesh is None:
        return function(*arguments)
    spec = () if like is None else tuple(jax.typeof(like).sharding.spec)[: np.ndim(like) - trailing]
    held = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.sharding.auto_axes(function, out_sharding=held)(*arguments)


def ndtri(p: jax.Array) -> jax.Array:
    """Return the normal quantile, elementwise: `jax.scipy.special.ndtri`, which alone fails under an explicit mesh.

    >>> round(float(ndtri(jax.numpy.asarray(0.975))), 2)
    1.96
    """
    return automatic(jax.scipy.special.ndtri, p, like=p)


def _mesh(array: Any) -> Any:
    """Return the mesh over which an array is sharded; an empty mesh for numbers."""
    return jax.typeof(array).sharding.mesh
