"""The benchmark of an accelerator runs in small on what there is, and counts the turns of loops as they are."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from submodels import of_models

import rcjax
from benchmarks import gpu
from benchmarks.chains import loops
from rcjax._core import beta
from rcjax.solving import bellman

pytestmark = pytest.mark.usefixtures("float64")


def test_turns_of_loops_are_counted_whether_known_beforehand_or_not():
    def halved(x):
        within = lax.fori_loop(0, 6, lambda _, y: jnp.sin(y), x, unroll=3)
        return (
            lax.while_loop(lambda y: y > 1, lambda y: lax.scan(lambda z, _: (z / 2, None), y, length=2)[0], x) + within
        )

    assert loops(jax.vmap(halved), jnp.array([3.0, 20.0])) == {"scan 2": 2, "while 3 > scan 2": 6}


@pytest.mark.thorough
def test_every_figure_is_given_on_what_there_is(monkeypatch, capsys):
    pair = of_models(rcjax.demo_model(), np.array([0, 4]))
    monkeypatch.setattr(rcjax, "demo_model", lambda: pair)
    for name in ("_together", "_unrolled"):
        module = bellman if name == "_together" else beta
        monkeypatch.setattr(module, name, getattr(module, name))  # the benchmark sets them for its process
    monkeypatch.setattr(gpu, "alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(gpu, "begin", lambda *_: None)
    monkeypatch.setattr(gpu, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "argv", ["gpu", "--small"])
    gpu.main()
    printed = capsys.readouterr().out
    for what in ("A sweep of 6 problems", "fit_problem | refit_problem | solve_problem", "| 100 |", "| search | while"):
        assert what in printed
    assert "nan" not in printed
