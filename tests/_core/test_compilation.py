"""How hard LLVM tries changes the time of a programme, not what it says."""

import jax
import jax.numpy as jnp
import pytest

import rcjax
from rcjax._core.compilation import _options
from rcjax.model.calibrated_models import fit_calibrators
from rcjax.model.fitting import fit_marginals


def test_only_the_cpu_has_optimization_levels():
    assert _options("gpu", 0) is None
    assert _options("cpu", 1)["xla_backend_optimization_level"] == 1
    assert "xla_backend_optimization_level" not in (_options("cpu", None) or {})


def products_of(jaxpr):
    """The precisions of all products of matrices in a programme, those in its inner programmes too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for value in jax.tree.leaves(dict(equation.params), is_leaf=lambda value: hasattr(value, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products_of(inner)


@pytest.mark.thorough
def test_matrices_are_multiplied_in_full_precision():
    """XLA's default on GPUs is ten bits for float32."""
    model = rcjax.demo_model()
    columns = jnp.zeros((96, 2)), jnp.ones((96, 2), bool), jnp.ones((96, 2), bool)

    def fit_margins(logprob, correct, answered):
        return fit_marginals(fit_calibrators(logprob, correct, answered, "choice")[1], answered)

    programmes = {
        "error_and_cost": jax.make_jaxpr(lambda t: rcjax.solving.error_and_cost(model, t))(jnp.full(4, 0.5)),
        "solve": jax.make_jaxpr(lambda price: rcjax.solving.solve(model, price, "full").loss)(jnp.asarray(300.0)),
        "fit": jax.make_jaxpr(fit_margins)(*columns),
    }
    for name, programme in programmes.items():
        products = list(products_of(programme.jaxpr))
        assert products, name
        assert {*products} == {(jax.lax.Precision.HIGHEST,) * 2}, name
