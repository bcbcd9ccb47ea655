"""Work in several threads: order, what a thread takes over, failures, and when there is but one."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest

from rcjax._core import threads
from rcjax._core.threads import as_here, at_once, cores, side_by_side


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)


def test_results_are_in_order_of_the_items(two_cores):
    def slow_at_first(x):
        time.sleep(0.02 / (1 + x))
        return x * x

    assert side_by_side(slow_at_first, range(20), n=1) == [x * x for x in range(20)]
    assert at_once(*(lambda x=x: slow_at_first(x) for x in range(5))) == [0, 1, 4, 9, 16]


def test_the_first_item_goes_ahead_and_the_others_share_the_cores(two_cores):
    together = threading.Barrier(2, timeout=10)

    def meet(x):
        if x == 0:
            return threading.current_thread()
        together.wait()  # for another one, which fails unless two run at a time
        return threading.current_thread()

    first, *others = side_by_side(meet, range(5), n=1)
    assert first is threading.current_thread()
    assert len(set(others)) == 2


@pytest.mark.parametrize("wide", [False, True])
def test_threads_have_the_floats_and_the_device_of_their_caller(wide, two_cores):
    device = jax.devices()[0]
    with jax.enable_x64(wide), jax.default_device(device):
        found = side_by_side(lambda _: (jnp.ones(1).dtype, jax.config.jax_default_device), range(4), n=1)
        later = as_here(lambda: jnp.ones(1).dtype)
    assert found == [(jnp.dtype("float64" if wide else "float32"), device)] * 4
    with jax.enable_x64(not wide):
        assert later() == found[0][0]


def test_a_failure_is_told_of_and_ends_the_others(two_cores):
    done = []

    def fail_early(x):
        if x == 1:
            raise ValueError("no")
        time.sleep(0.01)
        done.append(x)

    with pytest.raises(ValueError, match="no"):
        side_by_side(fail_early, range(200), n=1)
    assert len(done) < 100
    with pytest.raises(ValueError, match="no"):
        at_once(lambda: fail_early(1), lambda: 2)


def test_cores_are_those_that_the_process_may_use():
    assert 1 <= cores() <= (__import__("os").cpu_count() or 1)


def test_work_inside_a_worker_stays_in_its_thread(two_cores):
    def inner(_):
        return threading.get_ident()

    def outer(_):
        return {threading.get_ident(), *side_by_side(inner, range(4), n=1, alike=False)}

    assert all(len(idents) == 1 for idents in side_by_side(outer, range(4), n=1, alike=False))
