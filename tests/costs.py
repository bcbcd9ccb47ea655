"""The cost of a run of the tests, printed at its end: CPU seconds, JAX's tracing and compiling, and memory."""

import resource
import sys
from collections import Counter

import jax
import pytest

#: What JAX tells of its work, by the word that we tell it in.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


class Costs:
    """Counts in every process, and sums over the workers."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.workers: list[dict[str, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: object) -> None:
        if event in EVENTS:
            self.seconds[EVENTS[event]] += seconds

    def told(self) -> dict[str, float]:
        """This process's own, its children in the CPU seconds."""
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        spent = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        return {"cpu": spent, "memory": own.ru_maxrss * (1 if sys.platform == "darwin" else 1024), **self.seconds}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = self.told()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        if costs := getattr(node, "workeroutput", {}).get("costs"):
            self.workers.append(costs)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        each = self.workers or [self.told()]
        cpu, tracing, compiling = (sum(one.get(key, 0) for one in each) for key in ("cpu", "tracing", "compiling"))
        terminalreporter.line(
            f"{cpu:,.0f} CPU seconds: JAX traced for {tracing:,.0f} and compiled for {compiling:,.0f} (threads "
            f"together); at most {max(one['memory'] for one in each) / 1e9:.1f} GB in a process"
        )
