"""Fits whose queries are spread over devices: the model of one device, by all-reduces of sums alone."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import rcjax
from rcjax._core import batching
from rcjax.model import marginal_fitting
from rcjax.model.fitting_steps import fit_on_devices

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.forgetful]

PROGRAM = """
import dataclasses, json, re, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
jax.config.update("jax_enable_x64", True)
import rcjax
from rcjax._core import batching
from rcjax.model import fitting_steps, marginal_fitting
marginal_fitting._SAMPLE, marginal_fitting._BLOCK = 128, 32  # so that EM starts on a sample, and goes on in blocks
batching.MANY = 64  # models and pairs one after the other
log = rcjax.sample_log(501, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
answered = np.random.default_rng(0).random(log.answered.shape) < 0.9
log = dataclasses.replace(log, answered=jnp.asarray(answered), correct=log.correct & answered)
alone = rcjax.fit(log)
shared = rcjax.fit(log, devices=jax.devices())
worst = 0.0
for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
    assert one.dtype == other.dtype and one.shape == other.shape
    one, other = np.asarray(one, float), np.asarray(other, float)
    worst = max(worst, float(np.max(np.abs(one / other - 1), initial=0.0, where=one != other)))
mesh = Mesh(np.asarray(jax.devices()), ("queries",))
ours = NamedSharding(mesh, PartitionSpec("queries"))
shapes = [jax.ShapeDtypeStruct((504, 3), kind, sharding=ours) for kind in (float, bool, bool)]
text = fitting_steps.margins_on(mesh, "choice").lower(*shapes).compile().as_text()
found = sorted(set(re.findall(r"(all-[a-z]+|collective-[a-z]+|reduce-scatter)(?:-start)?\\(", text)))
print(json.dumps({"devices": len(jax.devices()), "worst": worst, "collectives": found}))
"""


@pytest.mark.thorough
def test_eight_devices_fit_the_model_of_one():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["devices"] == 8
    assert told["collectives"] == ["all-reduce"]
    # Sums in another order; expectation–maximisation, along a ridge of the likelihood, magnifies their rounding.
    assert told["worst"] < 1e-9


def test_no_device():
    log = rcjax.sample_log(20, seed=0)
    with pytest.raises(ValueError, match="devices is empty: give those that share the work"):
        fit_on_devices(log.logprob, log.correct, log.answered, "choice", [])


@pytest.fixture
def small_blocks(monkeypatch):
    """What a log of millions of queries goes through, for one of a few hundred."""
    jax.clear_caches()
    monkeypatch.setattr(batching, "MANY", 64)
    monkeypatch.setattr(marginal_fitting, "_BLOCK", 32)
    yield
    jax.clear_caches()


def leaves(tree):
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]


@pytest.mark.thorough
def test_blocks_and_one_model_after_the_other_change_nothing(small_blocks, monkeypatch):
    log = rcjax.sample_log(300, seed=1).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    blocks = rcjax.fit(log)
    monkeypatch.undo()
    jax.clear_caches()
    for one, other in zip(leaves(blocks), leaves(rcjax.fit(log)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.thorough
def test_a_climb_from_a_sample_reaches_the_top_of_all(monkeypatch):
    """Started on 128 of 2,000 values, expectation–maximisation ends where it does from three starts on all of them."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(2000) < 0.3, rng.beta(2.0, 20.0, 2000), rng.beta(6.0, 1.5, 2000))
    present = rng.random(2000) < 0.8

    def likelihood(mixture):
        columns = marginal_fitting.columns_of(x, present)
        return float(marginal_fitting._climb(columns, mixture)[1])

    whole = likelihood(marginal_fitting.fit_beta_mixture(x, present))
    monkeypatch.setattr(marginal_fitting, "_SAMPLE", 128)
    sampled = likelihood(marginal_fitting.fit_beta_mixture(x, present))
    assert sampled == pytest.approx(whole, abs=1e-6)
    values, there = marginal_fitting._sample(jax.numpy.asarray(x), jax.numpy.asarray(present), None)
    assert there.all()
    assert np.isin(values, x[present]).all()
    assert len(np.unique(values)) == 128
    few = present & (np.arange(2000) % 50 == 0)
    values, there = marginal_fitting._sample(jax.numpy.asarray(x), jax.numpy.asarray(few), None)
    assert np.asarray(values)[np.asarray(there)].tolist() == x[few].tolist()
