"""What tests compile, which is most of their time: `python -m pytest --compilations` prints the twenty dearest."""

import resource
import time
from dataclasses import dataclass, replace

import jax
import pytest

DEAREST = 20
#: JAX's names of the seconds that it spends on a programme before it runs.
STEPS = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
    "/jax/core/compile/backend_compile_duration": "compiled",
}


@dataclass
class Cost:
    """What a test took: programmes compiled, and seconds; a programme that is traced inside another counts twice."""

    programmes: int = 0
    traced: float = 0.0
    lowered: float = 0.0
    compiled: float = 0.0
    user: float = 0.0
    memory: float = 0.0
    """GB, the most that its process has had so far."""

    def __add__(self, other: "Cost") -> "Cost":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return replace(Cost(*(one + more for one, more in pairs)), memory=max(self.memory, other.memory))


class Compilations:
    """Counts XLA's compilations by test; with workers, each tells the one that prints."""

    def __init__(self) -> None:
        self.cost = Cost()
        self.by_test: dict[str, Cost] = {}
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_: object) -> None:
        step = STEPS.get(event)
        if step is not None:
            setattr(self.cost, step, getattr(self.cost, step) + seconds)
            self.cost.programmes += step == "compiled"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        self.cost = Cost(user=-time.process_time())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item):
        result = yield
        self.cost.user += time.process_time()
        self.cost.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        item.user_properties.append(("cost", vars(self.cost)))
        return result

    def pytest_runtest_logreport(self, report):
        for name, cost in report.user_properties:
            if name == "cost" and report.when == "teardown":
                self.by_test[report.nodeid] = Cost(**cost)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("what was compiled")
        row = "{0.programmes:>10,} {0.traced:>8.1f} {0.lowered:>8.1f} {0.compiled:>9.1f} {0.user:>8.1f}  {1}"
        terminalreporter.line("programmes  traced  lowered  compiled  user s")
        dearest = sorted(self.by_test.items(), key=lambda row: -row[1].traced - row[1].lowered - row[1].compiled)
        for test, cost in dearest[:DEAREST]:
            terminalreporter.line(row.format(cost, test))
        total = sum(self.by_test.values(), Cost())
        most = f"all {len(self.by_test):,} tests; the largest worker had {total.memory:.1f} GB"
        terminalreporter.line(row.format(total, most))
