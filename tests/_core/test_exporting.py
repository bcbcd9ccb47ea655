"""Functions of models and copulas, exported by JAX, are called by a process that has imported their classes."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax

READER = """
import sys
import jax
import rcjax
from rcjax.solving import error_and_cost  # whose result the file names
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
print(repr(float(exported.call(rcjax.demo_model(), jax.numpy.array([0.5, 0.6, 0.7, 0.8])).error)))
"""


def test_another_process_calls_what_was_exported(tmp_path):
    pytest.importorskip("flatbuffers")
    thresholds = jnp.array([0.5, 0.6, 0.7, 0.8])
    exported = jax.export.export(jax.jit(rcjax.solving.error_and_cost))(rcjax.demo_model(), thresholds)
    path = tmp_path / "function.bin"
    path.write_bytes(exported.serialize())
    run = subprocess.run([sys.executable, "-c", READER, path], capture_output=True, text=True, timeout=300)
    expected = rcjax.solving.error_and_cost(rcjax.demo_model(), thresholds).error
    np.testing.assert_allclose(float(run.stdout), expected, rtol=1e-6, err_msg=run.stderr)
