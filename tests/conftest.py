"""Settings of all tests: tiers, compilation, float64 or float32, and the folders of real logs and reference figures."""

import contextlib
import ctypes
import gc
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from costs import Costs
from helpers import next_steps
from hypothesis import settings

import rcjax
from rcjax._core.compilation import LEVELS, forget_programs, store_programs

# A busy machine fails no test by time. CI draws the same examples each time, as Hypothesis's own profile for it
# does: what fails there is of the change. Elsewhere every run draws anew.
settings.register_profile("rcjax", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("rcjax")

SHARED = Path(__file__).parents[2] / "shared"
#: No example stands in a conftest, and doctest takes two of them for one module.
collect_ignore_glob = ["conftest.py", "*/conftest.py"]


#: Bytes and memory maps of a worker, above which it lets go of what is compiled; Linux allows 65,530 maps.
MAX_MEMORY, MAX_MAPS = 1_900_000_000, 50_000
LONG = LEVELS["long"]
#: Folders of tests that take longest, which come first: else one worker is at them while the others have nothing.
LONGEST = ("report", "tuning", "solving", "model", "cli", "serving")
LEFT_OUT, PROGRAMS, END = pytest.StashKey[int](), pytest.StashKey[Path](), pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="skip what has not begun after so many")


def pytest_configure(config):
    """Most of the suite's time is compilation: what is compiled once serves all workers and later runs."""
    config.stash[LEFT_OUT] = 0
    config.pluginmanager.register(Costs())
    config.stash[END] = time.monotonic() + 60 * (config.getoption("minutes") or float("inf"))
    tiers.EVERYTHING[0] = config.option.markexpr.replace("not thorough", "").count("thorough") > 0
    if jax.__version_info__ < (0, 11):
        # The quicker of two CPU emitters, as in rcjax._core.compilation; and no parts for several threads, which take a
        # sixth longer, as every core has a worker already.
        flags = " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flags
    # Workers, and the commands that tests start, would each compile the package and its tests anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    cache = getattr(config, "cache", None)  # -p no:cacheprovider has none
    config.stash[PROGRAMS] = Path(tempfile.mkdtemp(prefix="rcjax") if cache is None else cache.mkdir("rcjax"))
    jax.config.update("jax_compilation_cache_dir", str(config.stash[PROGRAMS]))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_traceback_in_locations_limit", 0)  # as the command line does
    gc.set_threshold(1_000_000, 50, 50)
    # absl, which optax imports, closes the stream it logs to when uvicorn sets up logging anew: not pytest's, please.
    absl.logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    _compile_quickly(True)


def _compile_quickly(quick):
    """Half the suite's time would be LLVM's optimisations, which only long simulations earn back."""
    jax.config.update("jax_disable_most_optimizations", quick)
    LEVELS["long"] = LEVELS["once"] if quick else LONG


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A folder's tests share a worker, which then compiles for it once.

    Groups are xdist's own way to it, but with pytest 9.2 they change nothing: that names tests anew.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.split("::", 1)[0])
            return str(path if path.parent.name == "tests" else path.parent)

    return ByFolder(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Modules that have JAX forget what it has compiled come first, then the folders that take longest."""
    for item in items:
        folder, *names = Path(item.nodeid.split("::", 1)[0]).with_suffix("").parts
        alone = any(map(item.get_closest_marker, ("optimised", "forgetful")))
        long = folder == "tests" and names[0] in LONGEST
        item.turn = -1 if alone else LONGEST.index(names[0]) if long else len(LONGEST)
    items.sort(key=lambda item: item.turn)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip tests that have not begun within --minutes."""
    if time.monotonic() > item.config.stash[END]:
        pytest.skip(f"not begun within {item.config.getoption('minutes'):g} minutes (--minutes)")


def pytest_deselected(items):
    """Count what the default tier leaves out."""
    for item in items:
        if item.get_closest_marker("thorough") is not None:
            item.config.stash[LEFT_OUT] += 1


def pytest_sessionfinish(session):
    """A worker tells the count to the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Every worker collects everything: the counts are the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
    """Say what was left out, and how to run it."""
    if config.stash[LEFT_OUT]:
        terminalreporter.line(
            f"left out: {config.stash[LEFT_OUT]:,} tests that simulate, exhaust or repeat; with them: "
            'python -m pytest -n 2 -m "thorough or not thorough"'
        )


@pytest.fixture(scope="module", autouse=True)
def _compiler(request):
    """Modules with the mark `optimised` run what users run, and so do commands on real logs."""
    quick, wide = request.node.get_closest_marker("optimised") is None, jax.config.jax_enable_x64
    if not quick:
        jax.clear_caches()
        _compile_quickly(False)
    yield
    _compile_quickly(True)
    jax.config.update("jax_enable_x64", wide)  # which commands switch on
    if not quick or _memory() > MAX_MEMORY or _maps() > MAX_MAPS:
        jax.clear_caches()
        forget_programs()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # else the process keeps what it is no longer using


def _memory():
    """Bytes of memory that this process has; 0 where nobody can tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _maps():
    """Return the number of memory maps of this process, of which compiled code takes some."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


@pytest.fixture(scope="session")
def programs(request) -> Path:
    """JAX's cache of compiled programmes, which all workers share."""
    return request.config.stash[PROGRAMS]


@pytest.fixture
def own_settings(request, tmp_path_factory, monkeypatch):
    """Commands run in this process set JAX up for themselves: keep that out of the other tests.

    They share a cache folder, and have a terminal as wide as the module's COLUMNS say. However slow the machine is, no
    line of progress comes between their warnings. What their screens say to type next is run after the test.
    """
    monkeypatch.setattr("rcjax.cli.console.PROGRESS_INTERVAL", 1e6)
    monkeypatch.setenv("RCJAX_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    monkeypatch.setenv("COLUMNS", getattr(request.module, "COLUMNS", "100"))
    before = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_compilation_cache_dir")}
    with next_steps.collected(tmp_path_factory):
        yield
    store_programs(None)
    before["jax_disable_most_optimizations"] = request.node.get_closest_marker("optimised") is None
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def float64():
    """The tests of a module run in float64; afterwards everything is as it was before."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def demo(float64):
    """The model of the demo."""
    return rcjax.demo_model()


@pytest.fixture(scope="module")
def demo_lam(demo):
    """Eight λ from where its dearest model is worth its cost to where its cheapest is best."""
    return np.geomspace(3e-3, 1.0, 8) / float(demo.cost[-1])


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
