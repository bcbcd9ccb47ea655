"""Arrays that are laid out over the devices of an explicit mesh, as `jax.make_mesh` makes them by default.

There every operation must say how its result is laid out, which loops and gathers of a search leave open. So a whole
function is run with its axes turned automatic, where the compiler lays out what is between, and its result is laid out
as an argument is.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def automatic(function: Callable[..., Any], *arguments: Any, like: Any = None, trailing: int = 0) -> Any:
    """function(*arguments), also where some arrays are laid out over an explicit mesh.

    Args:
        function: gives a pytree of arrays, whose leading axes are those of `like`.
        arguments: pytrees of arrays; the function closes over none of an explicit mesh.
        like: the array whose layout the result has; None: the result is whole on every device.
        trailing: how many of its last axes the result does not have.

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
    """The normal quantile, elementwise: `jax.scipy.special.ndtri`, which by itself fails under an explicit mesh.

    >>> round(float(ndtri(jax.numpy.asarray(0.975))), 2)
    1.96
    """
    return automatic(jax.scipy.special.ndtri, p, like=p)


def _mesh(array: Any) -> Any:
    """The mesh that an array is laid out over; an empty one for numbers."""
    return jax.typeof(array).sharding.mesh
