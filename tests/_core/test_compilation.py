"""How hard LLVM tries changes the time of a programme, not what it says."""

import jax.numpy as jnp
import numpy as np
import pytest

from rcjax._core.compilation import LEVELS, _options, compiled


@pytest.mark.parametrize("runs", ["often", *LEVELS])
def test_the_result_does_not_depend_on_the_level(runs):
    x = np.linspace(0.1, 2.0, 7)
    programme = compiled(lambda x, power: jnp.exp(-(x**power)).sum(), static_argnames="power", runs=runs)
    assert float(programme(x, power=2)) == pytest.approx(np.exp(-(x**2)).sum(), rel=1e-5)


def test_only_the_cpu_has_levels():
    assert _options("gpu", 0) is None
    assert _options("cpu", 1)["xla_backend_optimization_level"] == 1
    assert "xla_backend_optimization_level" not in (_options("cpu", None) or {})
