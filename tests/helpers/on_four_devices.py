"""Results of public functions over meshes of four CPU devices, explicit and automatic; run by `test_meshes.py`.

python tests/helpers/on_four_devices.py explicit|auto [solve]
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rcjax
from rcjax.copulas import Gaussian, Gumbel
from rcjax.model import fit_copula

ROWS = PartitionSpec("rows")
#: Of these rows are turned about, which `shard_map` cannot.
TURNED = Gumbel(2.0), Gaussian(0.3)


def cheap(model):
    """(function, array) by name: arrays (8, …), rows of the result beside rows of the array."""
    confidence = model.sample(jax.random.key(0), (8,))
    u = jnp.linspace(0.05, 0.95, 8)
    thresholds = jnp.stack([u, u[::-1], u, u], axis=-1)
    functions = {
        "log_prob": (model.log_prob, confidence),
        "error_and_cost": (lambda rows: jnp.stack(rcjax.solving.error_and_cost(model, rows), -1), thresholds),
        "from_tau": (lambda tau: rcjax.copulas.Frank.from_tau(tau).theta, u - 0.5),
    }
    for copula in TURNED:
        functions[type(copula).__name__] = (lambda u, copula=copula: copula.log_density(u, u[::-1] ** 2), u)
    return functions


def dear(model):
    """The same of functions that take their time to compile."""
    lam = jnp.linspace(100.0, 1000.0, 8)
    return {
        "solve": (lambda lam: rcjax.solving.solve(model, lam, "full").thresholds, lam),
        "slope": (jax.grad(lambda lam: rcjax.solving.solve(model, lam, [model.models[::4]]).loss.sum()), lam),
    }


def check(name, function, array, mesh):
    """Eager, under `jit`, and within `shard_map`: the figures of one device, laid out as the array is."""
    expected = np.asarray(function(array))
    laid = jax.device_put(array, NamedSharding(mesh, ROWS))
    spread = jax.shard_map(function, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
    explicit = AxisType.Explicit in mesh.axis_types
    got = {} if name == "slope" else {"eager": function(laid)}  # JAX's own gradients want the mesh to be set
    with jax.set_mesh(mesh):
        got["jit"] = jax.jit(function)(laid)
    if name not in {type(copula).__name__ for copula in TURNED}:
        got["shard_map"] = jax.jit(spread)(laid)
    for how, value in got.items():
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-8, atol=1e-12, err_msg=f"{name} {how}")
        if explicit and (name, how) != ("error_and_cost", "eager"):  # on the host
            assert jax.typeof(value).sharding.spec[0] == "rows", (name, how, value.sharding)


def main(kind, *which):
    """Check all functions of a kind of mesh."""
    axis = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(axis,))
    model = rcjax.demo_model()
    for name, (function, array) in (dear if which else cheap)(model).items():
        check(name, function, array, mesh)
    if not which:
        u = jnp.linspace(0.05, 0.95, 8)
        laid = jax.device_put(u, NamedSharding(mesh, ROWS))
        for method in ("tau", "likelihood"):
            theta = fit_copula(laid, laid**2 % 0.7, "frank", method=method).theta
            np.testing.assert_allclose(theta, fit_copula(u, u**2 % 0.7, "frank", method=method).theta, rtol=1e-9)
    print("all alike")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(*sys.argv[1:])
