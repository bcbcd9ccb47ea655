"""How hard LLVM tries changes the time of a programme, not what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax._core.compilation import LEVELS, _level, _options, compiled
from rcjax._core.threads import side_by_side
from rcjax.model.calibrated import fit_calibrators
from rcjax.model.fitting import fit_marginals


@pytest.mark.parametrize("runs", ["often", *LEVELS])
def test_the_result_does_not_depend_on_the_level(runs):
    x = np.linspace(0.1, 2.0, 7)
    programme = compiled(lambda x, power: jnp.exp(-(x**power)).sum(), static_argnames="power", runs=runs)
    assert float(programme(x, power=2)) == pytest.approx(np.exp(-(x**2)).sum(), rel=1e-5)


def test_only_the_cpu_has_levels():
    assert _options("gpu", 0) is None
    assert _options("cpu", 1)["xla_backend_optimization_level"] == 1
    assert "xla_backend_optimization_level" not in (_options("cpu", None) or {})


@pytest.mark.parametrize(("quick", "expected"), [(True, ["once", "long"]), (False, [None, None])])
def test_one_of_many_pieces_of_work_is_worth_more_compiling_where_the_others_are_compiled_quickly(
    quick, expected, monkeypatch
):
    monkeypatch.setitem(LEVELS, "long", 1)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", quick)
    try:
        levels = [side_by_side(lambda _: _level("often"), range(count), n=1) for count in (3, 200)]
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    assert [{*some} for some in levels] == [{None if runs is None else LEVELS[runs]} for runs in expected]
    assert _level("long") == 1


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
    log = rcjax.sample_log(96, seed=0).select(("llama3.2-1b", "llama3.1-70b"))
    model = rcjax.fit(log)
    columns = jnp.asarray(log.logprob), jnp.asarray(log.correct), jnp.asarray(log.answered)

    def fit_margins(logprob, correct, answered):
        return fit_marginals(fit_calibrators(logprob, correct, answered, "choice")[1], answered)

    programmes = {
        "error_and_cost": jax.make_jaxpr(lambda t: rcjax.solving.error_and_cost(model, t))(jnp.array([0.5])),
        "solve": jax.make_jaxpr(lambda price: rcjax.solving.solve(model, price, "full").loss)(jnp.asarray(300.0)),
        "fit": jax.make_jaxpr(fit_margins)(*columns),
    }
    for name, programme in programmes.items():
        products = list(products_of(programme.jaxpr))
        assert products, name
        assert {*products} == {(jax.lax.Precision.HIGHEST,) * 2}, name
