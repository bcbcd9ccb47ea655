"""Float64 or float32 for a test, and the folders of real logs and reference figures."""

import contextlib
import logging
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

SHARED = Path(__file__).parents[2] / "shared"


def pytest_configure(config):
    """Most of the suite's time is XLA's: programmes compiled once serve all workers and later runs."""
    if jax.__version_info__ < (0, 11):  # the quicker of two CPU emitters, as in rcjax._compile
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(scope="module", autouse=True)
def _forget_programmes():
    """Compiled code takes memory maps, of which a process may have 65,530: a worker for all files would run out."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def float64():
    """The tests of a module run in float64; afterwards everything is as it was before."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def float32():
    """The test runs in float32."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def compilations(caplog):
    """A context whose list holds, once it is left, what jax said while it compiled inside."""

    @contextlib.contextmanager
    def watch():
        messages = []
        with caplog.at_level(logging.DEBUG, logger="jax"), jax.log_compiles():
            jax.jit(lambda x: x * 3 + 1)(jnp.ones(3))
            assert any("ompil" in record.getMessage() for record in caplog.records), "jax no longer logs compilations"
            caplog.clear()
            yield messages
            messages += [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()]

    return watch


def _folder(name):
    path = SHARED / name
    if not path.is_dir():
        pytest.skip(f"needs {path}, which is not in this checkout")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real logs."""
    return _folder("data")


@pytest.fixture(scope="session")
def shared_reference() -> Path:
    """The folder of published figures and high-precision oracles."""
    return _folder("reference")
