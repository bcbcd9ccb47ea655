"""The benchmark of an accelerator runs in small on what there is, and counts the turns of loops as they are."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.submodels import of_models
from jax import lax

import rcjax
from benchmarks import gpu
from benchmarks.chains import loops
from rcjax._core import numerics
from rcjax.solving import bellman

pytestmark = pytest.mark.usefixtures("float64")


def test_turns_of_loops_are_counted_whether_known_beforehand_or_not():
    def halved(x):
        within = lax.fori_loop(0, 6, lambda _, y: jnp.sin(y), x, unroll=3)
        return (
            lax.while_loop(lambda y: y > 1, lambda y: lax.scan(lambda z, _: (z / 2, None), y, length=2)[0], x) + within
        )

    assert loops(jax.vmap(halved), jnp.array([3.0, 20.0])) == {"scan 2": 2, "while 3 > scan 2": 6}


@pytest.fixture
def in_small(monkeypatch):
    """The benchmark in this process, on two models."""
    pair = of_models(rcjax.demo_model(), np.array([0, 4]))
    monkeypatch.setattr(rcjax, "demo_model", lambda: pair)
    for name in ("batch_size", "unrolled_terms"):
        module = bellman if name == "batch_size" else numerics
        monkeypatch.setattr(module, name, getattr(module, name))  # the benchmark sets them for its process
    monkeypatch.setattr(gpu, "alone", lambda function, *arguments, patience: function(*arguments))
    monkeypatch.setattr(gpu, "begin", lambda *_: None)
    monkeypatch.setattr("rcjax.tuning.sweeps.engines.problems_at_a_time", lambda *_: 4)  # as on an accelerator
    monkeypatch.setattr(gpu, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "argv", ["gpu", "--small"])
    return monkeypatch


@pytest.mark.thorough
def test_every_figure_is_measured_on_the_devices_at_hand(in_small, capsys):
    gpu.main()
    printed = capsys.readouterr().out
    for what in ("| 8 |", "fit_problem | refit_problem | solve_problem", "| 100 |", "| search | while", "slopes of"):
        assert what in printed
    assert "nan" not in printed


def test_a_measurement_that_fails_keeps_the_others(in_small, capsys):
    def alone(function, *arguments, patience):
        if (function in (gpu.sweep, gpu.one_frontier) and arguments[0] != "cpu") or function is gpu.many_prices:
            raise EOFError("the process ended with code -9")
        figures = {"first": 1.0, "seconds": 4.0, "rate": 2.0, "steady": 3.0, "host": 5.0}
        loss = {"compile": 1.5, "run": 0.5, "loss": np.ones(4)}
        swept = {"problems": 8, "cold": figures, "warm": figures, "stages": {"rest": 0.25}}
        answers = {gpu.sweep: swept, gpu.long_sweep: figures, gpu.one_frontier: loss, jax.default_backend: "gpu"}
        return answers[function]

    in_small.setattr(gpu, "alone", alone)
    in_small.setattr(sys, "argv", ["gpu", "--small", "--only", "prices", "sweeps", "one"])
    with pytest.raises(SystemExit, match="1"):
        gpu.main()
    printed = capsys.readouterr().out
    for what in ("CPU cores | 8 | 1.0 s", "8 problems: 3 a second", "CPU cores | 0.25 |", "| CPU | 1.5 s | 500 ms |"):
        assert what in printed
    missing = printed.partition("Missing:")[2]
    for what in ("a sweep, gpu, float64", "a sweep, gpu, float32", "one frontier, float64", "many λ, CPU, float64"):
        assert f"- {what}: EOFError: the process ended with code -9" in missing
    assert "- a long sweep" not in missing
