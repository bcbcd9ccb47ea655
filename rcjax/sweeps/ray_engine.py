"""The batches of a sweep as tasks of a Ray cluster (https://docs.ray.io), each on one core or one GPU.

A task is sent its batch and the logs that are in it, and returns the tables: nodes need not share a folder. Ray solves
a batch again whose node is lost. Batches are solved as by one device of a process alone, so results are the same to the
byte where nodes have the same kind of core.
"""

from __future__ import annotations

import os
import pickle
import socket
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from rcjax._base.extras import required, version
from rcjax.sweeps.engines import BatchTables, Engine, Solved, Work, device_mesh, solve_batch

_RETRIES = 3  # of a batch whose worker or node was lost
_AHEAD = 2  # batches that are sent for each that can run at a time: none waits for the next, and memory holds them
_PATIENCE = 10.0  # seconds until the cluster must have answered
#: What of JAX's configuration changes results, or how long they take: tasks have it as this process does.
_TAKEN_OVER = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
    "jax_traceback_in_locations_limit",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@contextmanager
def connected(address: str | None = None) -> Iterator[Engine]:
    """The engine of a Ray cluster that exists, to which this process is connected within the block.

    Args:
        address: HOST:PORT of its head, or ray://HOST:PORT. By default the cluster that this process is connected to
            already, the one of RAY_ADDRESS, or the one of which this machine is a node.

    Raises ImportError without Ray, ConnectionError where there is no cluster, ValueError for an address where this
    process is connected already.
    """
    ray = required("ray", extra="ray")
    if ray.is_initialized():
        if address is not None:
            raise ValueError("address: this process is connected to a Ray cluster already: leave address out")
        yield partial(_solve, ray)
        return
    _connect(ray, address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        yield partial(_solve, ray)
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    advice = "start one (ray start --head), or give the HOST:PORT of its head as the address"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would try for minutes, then end this process
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (OSError, OverflowError, RuntimeError, ValueError) as problem:
        where = "no Ray cluster is running here" if address == "auto" else f"no Ray cluster at {address}"
        raise ConnectionError(f"{where}: {advice} ({' '.join(str(problem).split())})") from None


def _solve(ray: Any, work: Work, numbers: list[int]) -> Solved:
    """The batches as tasks, some ahead of those that can run, as they come."""
    kind = _kind(ray)
    options = {"num_cpus": 1, "max_retries": _RETRIES} | ({"num_gpus": 1} if kind == "GPU" else {})
    task = ray.remote(**options)(_task)
    setting = {name: _of_jax(name) for name in _TAKEN_OVER} | ({} if kind == "GPU" else {"jax_platforms": "cpu"})
    waiting, running = deque(numbers), {}

    @lru_cache(maxsize=1)  # once for batches that follow each other and are of the same logs
    def put(names: tuple[str, ...]) -> Any:
        # As bytes: arrays that Ray itself unpacks would be float32 before the task has switched on float64.
        return ray.put(pickle.dumps(work.library.part(names)))

    try:
        while waiting or running:
            room = max(1, int(_AHEAD * ray.cluster_resources().get(kind, 0)))  # nodes come and go
            while waiting and len(running) < room:
                number = waiting.popleft()
                sent = put(_names(work, number)), work.batches[number], work.settings
                running[task.remote(setting, _versions(), *sent)] = number
            for reference in ray.wait([*running])[0]:
                number = running.pop(reference)
                tables = _result(ray, reference, work, number)
                yield number, lambda tables=tables: tables
    finally:
        for reference in running:
            ray.cancel(reference)


def _kind(ray: Any) -> str:
    """What a task is given one of: "GPU" where the cluster has any, unless JAX_PLATFORMS says cpu; else "CPU"."""
    resources = ray.cluster_resources()
    kind = "GPU" if resources.get("GPU", 0) >= 1 and os.environ.get("JAX_PLATFORMS") != "cpu" else "CPU"
    if resources.get(kind, 0) < 1:
        warnings.warn("the Ray cluster has no core: the sweep waits until a node joins it", stacklevel=2)
    return kind


def _names(work: Work, number: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sample.log for sample in work.batches[number].samples))


def _versions() -> dict[str, str]:
    return {"rcjax": version(), "jax": jax.__version__, "numpy": np.__version__}


def _task(setting: dict[str, Any], versions: dict[str, str], library: bytes, batch: Any, settings: Any) -> BatchTables:
    """What a node does: one batch, on the device that Ray gives it."""
    if versions != _versions():
        theirs, ours = (", ".join(map(" ".join, some.items())) for some in (_versions(), versions))
        node = socket.gethostname()
        raise ValueError(f"node {node} has {theirs}, this process has {ours}: install the same on all nodes")
    for name, value in setting.items():
        if _of_jax(name) != value:
            jax.config.update(name, value)
    work = Work(pickle.loads(library), settings, [batch])
    return solve_batch(work, 0, device_mesh(jax.local_devices()[:1]))


def _of_jax(name: str) -> Any:
    """A value of JAX's configuration: this thread's, where threads may differ; of the others there is only one."""
    return getattr(jax.config, name) if hasattr(jax.config, name) else jax.config.read(name)


def _result(ray: Any, reference: Any, work: Work, number: int) -> BatchTables:
    """What a task returned; where it failed, one message, without the traceback that Ray sends along."""
    first, *others = _names(work, number)
    batch = f"batch {number} (log {first}{f' and {len(others):,} more' if others else ''})"
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as failure:
        cause = failure.cause
        if isinstance(cause, ValueError):
            raise cause from None
        # Ray sends a traceback as the message where a node cannot import rcjax; its last line is the reason.
        reason = (str(cause).strip().splitlines() or [""])[-1]
        raise RuntimeError(f"{batch} failed on Ray: {type(cause).__name__}: {reason}") from None
    except ray.exceptions.RayError as failure:
        advice = "give nodes more memory, or sweep smaller batches; the same command goes on"
        times = f"{_RETRIES + 1} times ({type(failure).__name__})"
        raise ConnectionError(f"{batch} was lost {times}, with the node that solved it: {advice}") from None
