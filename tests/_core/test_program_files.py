"""Compiled programmes that are kept: loaded where the call is the same, and from nowhere that others can write to."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from tiers import thorough

from rcjax._base.figures import Money
from rcjax._core import compilation
from rcjax._core.compilation import call_signature, compiled, forget_programs, signature_key, store_programs
from rcjax.model.fitting import pair_taus_compiled

pytestmark = pytest.mark.forgetful

DATA = np.random.default_rng(0).random((40, 3)), np.ones((40, 3), bool)


@pytest.fixture
def folder(tmp_path):
    """Programmes are kept here, and none is in memory."""
    if jax.default_backend() != "cpu":
        pytest.skip("programmes are kept on the CPU alone; this is a device of another kind")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    jaxs_own = jax.config.jax_compilation_cache_dir
    use_jaxs_cache(None)
    forget_programs()
    store_programs(cache)
    yield cache / "programs"
    store_programs(None)
    forget_programs()
    use_jaxs_cache(jaxs_own)


def use_jaxs_cache(folder):
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()


def again():
    """As in a new process: what is in memory is gone."""
    forget_programs()
    jax.clear_caches()
    return np.asarray(pair_taus_compiled(*DATA))


def test_a_second_process_compiles_nothing(folder, compilations):
    first = np.asarray(pair_taus_compiled(*DATA))
    assert len(list(folder.iterdir())) == 1
    with compilations() as messages:
        second = again()
    assert not messages
    np.testing.assert_array_equal(first, second)
    store_programs(None)
    np.testing.assert_array_equal(first, np.asarray(pair_taus_compiled(*DATA)))


def test_other_shapes_types_and_settings_need_other_programs(folder):
    pair_taus_compiled(*DATA)
    pair_taus_compiled(*(array[:30] for array in DATA))
    with jax.enable_x64(not jax.config.jax_enable_x64):
        pair_taus_compiled(*DATA)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("damage", thorough([b"", b"no program", "a byte"], lambda damage: damage != "a byte"))
def test_a_damaged_file_is_replaced(folder, damage, compilations):
    first = np.asarray(pair_taus_compiled(*DATA))
    (path,) = folder.iterdir()
    full = path.read_bytes()
    path.write_bytes(damage if isinstance(damage, bytes) else full[:100] + bytes([full[100] ^ 1]) + full[101:])
    with compilations() as messages:
        np.testing.assert_array_equal(first, again())
    assert messages
    with compilations() as messages:
        np.testing.assert_array_equal(first, again())
    assert not messages


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no owners of files")
def test_nothing_is_loaded_that_others_could_have_written(folder, compilations):
    pair_taus_compiled(*DATA)
    folder.chmod(0o770)
    with compilations() as messages:
        again()
    assert messages
    assert compilation.open_program_files(folder.parent) is None
    if os.geteuid() == 0:
        folder.chmod(0o700)
        os.chown(folder, 12345, -1)
        assert compilation.open_program_files(folder.parent) is None
    of_jax = compilation.jax_folder(folder.parent)
    assert (of_jax.parent, of_jax.stat().st_mode & 0o777) == (folder.parent, 0o700)
    of_jax.chmod(0o770)
    assert compilation.jax_folder(folder.parent) is None
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")
    assert compilation.open_program_files(folder.parent) is None


def test_a_folder_that_cannot_be_written_to_and_a_full_disk_cost_nothing(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rcjax._core.compilation.write_atomically", full)
        assert again().shape == (3,)
    assert not list(folder.iterdir())
    folder.rmdir()
    folder.write_text("a file")
    store_programs(folder.parent)
    assert again().shape == (3,)


def test_the_folder_is_bounded_and_holds_files_of_others(folder, monkeypatch):
    monkeypatch.setattr(compilation, "MAX_BYTES", 20_000)
    old = folder / f"{'0' * 64}.program"
    old.write_bytes(bytes(30_000))
    os.utime(old, (1, 1))
    ours = folder / "notes.txt"
    ours.write_bytes(bytes(30_000))
    beside = folder.parent / "log.csv"
    beside.write_bytes(bytes(30_000))
    cached = compilation.jax_folder(folder.parent) / f"jit_old-{'1' * 64}-cache"
    cached.write_bytes(bytes(30_000))
    os.utime(cached, (2, 2))
    pair_taus_compiled(*DATA)
    assert ours.exists()
    assert beside.exists()
    assert not old.exists()
    assert not cached.exists()


def test_programs_of_user_code_are_not_stored(folder):
    @jax.tree_util.register_pytree_node_class
    class Own(tuple):
        def tree_flatten(self):
            return tuple(self), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(children)

    twice = compiled(lambda x: 2 * x)
    assert float(twice(1.0)) == 2.0
    leaves, tree = jax.tree.flatten({"x": Own((1.0,))})
    assert signature_key(pair_taus_compiled, call_signature(leaves, tree, {}), None) is None
    assert signature_key(pair_taus_compiled, call_signature(*jax.tree.flatten({"x": 1.0}), {"by": Own}), None) is None
    assert (
        signature_key(pair_taus_compiled, call_signature(*jax.tree.flatten({"x": 1.0}), {"by": "tau"}), None)
        is not None
    )
    assert not list(folder.iterdir())
    # A static record of ours is known by its values, and is not its class.
    records = [Money(1e3, "thousand"), Money(1e6, "thousand"), Money]
    plain = jax.tree.flatten({"x": 1.0})
    keys = {signature_key(pair_taus_compiled, call_signature(*plain, {"by": record}), None) for record in records}
    assert len(keys - {None}) == 3


def test_with_jaxs_own_cache_no_program_is_stored(folder, tmp_path):
    """What JAX has loaded from its cache cannot be saved again."""
    use_jaxs_cache(str(tmp_path / "jax"))
    assert again().shape == (3,)
    assert not list(folder.iterdir())


def test_a_key_is_the_same_in_every_process():
    program = """
import jax, numpy as np
from rcjax._core.compilation import call_signature, signature_key
from rcjax.model.fitting import pair_taus_compiled
import rcjax
tree = jax.tree.flatten(rcjax.demo_model().marginals)
call = call_signature(*tree, {"family": rcjax.copulas.Gumbel, "name": "a"})
print(signature_key(pair_taus_compiled, call, {"level": 1}))
"""
    keys = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1
    assert len(keys.pop().strip()) == 64


@pytest.mark.thorough
def test_a_stored_linear_algebra_program_runs_in_a_fresh_process(tmp_path):
    """JAX looks for LAPACK when it lowers a call of it: a process that only loads has to look for itself."""
    program = """
import pathlib, sys
import jax, numpy as np
from rcjax._core import compilation
from rcjax.model.label_outcomes import _fit
assert compilation.store_programs(pathlib.Path(sys.argv[1]))
rng = np.random.default_rng(0)
rows, right = rng.random((40, 3), np.float32), np.arange(40) % 2
weight = np.ones((1, 40), np.float32)
print(np.asarray(_fit(rows, np.arange(40) % 2, right.astype(np.float32), weight, k=2)).tolist())
"""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    first, second = (
        subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True) for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr or "it was killed"
    assert second.stdout == first.stdout
    assert list((folder / "programs").iterdir())
