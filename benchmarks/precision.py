"""Float32 against float64, and fewer quadrature nodes against more: differences of frontiers.

    python -m benchmarks.precision --data DIR
    python -m benchmarks.precision --data DIR --panels 9 11 17

Each training log in DIR is fitted and solved in both precisions: the frontier of all subcascades at 50 λ. The table has
the largest differences of error + λ·cost and of error, in points, and of cost, relative to the dearest model; and the
number of points with another cascade. `--panels` compares numbers of quadrature panels of a model with 34 panels: for
sweeps in float64; and for pairs of models whose confidences are random mixtures of betas with parameters from 0.3 to
300, sharper than in any log, as quantiles of the difference of the error. Prints Markdown tables.
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import CHOICE
from rcjax.solving.frontier.points import lam_range
from rcjax.solving.quadrature import build_tables, outcome_of_cuts

_MANY = 34  # panels
_PAIRS = 1500


def solved(read: Any) -> dict[str, np.ndarray]:
    """The frontier's arrays, and λ."""
    log = read()
    lam = lam_range(np.asarray(log.cost, float), 50)
    found = rcjax.solve_frontier(rcjax.fit(log), lam=lam)
    arrays = {name: np.asarray(getattr(found, name), float) for name in ("error", "cost", "members")}
    return arrays | {"lam": lam, "dearest": np.asarray(log.cost, float).max()}


def swept(logs: dict[str, rcjax.Log], panels: int) -> Any:
    """The points of a sweep with so many panels, in order."""
    with tempfile.TemporaryDirectory() as folder:
        return rcjax.tuning.sweeps.sweep(logs, folder, panels=panels).points.collect().sort("log", "lam")


def random_pairs() -> tuple[Any, Any, jax.Array]:
    """Marginals (N, 2) of random mixtures, Gumbel copulas (N, 1) and cuts (N, 2) in probability."""
    rng = np.random.default_rng(0)

    def draw(low, high, *shape):
        return jnp.asarray(rng.uniform(low, high, (_PAIRS, 2, *shape)))

    share, masses = draw(0.02, 0.98), ([0, 0.003, 0.1, 0.3], [0, 0.003, 0.2, 0.45])
    bottom, top = (jnp.asarray(rng.choice(mass, (_PAIRS, 2))) for mass in masses)
    ends, shapes = (draw(0.05, 0.4), draw(0.7, 0.999)), [jnp.exp(draw(np.log(0.3), np.log(300), 2)) for _ in range(2)]
    marginals = rcjax.model.Marginal(*ends, bottom, top, jnp.stack([share, 1 - share], -1), *shapes)
    copulas = rcjax.copulas.Gumbel(jnp.asarray(rng.uniform(1, 8, (_PAIRS, 1))))
    return marginals, copulas, draw(0, 1).at[:, 1].set(0.0)


def errors_of(pairs: Any, panels: int) -> np.ndarray:
    """(N,) the probability that each pair is wrong."""

    def one(pair):
        marginals, copulas, cut = pair
        tables = build_tables(marginals, copulas, jnp.ones(2), np.array([0]), np.array([1]), panels)
        return outcome_of_cuts(tables, cut, jnp.ones(1, bool), jnp.zeros((), int)).error

    return np.asarray(jax.jit(lambda pairs: jax.lax.map(one, pairs))(pairs))


def compare_panels(logs: dict[str, rcjax.Log], numbers: list[int]) -> None:
    """A row per number of panels."""
    most, pairs = swept(logs, _MANY), random_pairs()
    sharp = errors_of(pairs, _MANY)
    print("| panels | logs: loss | logs: error | random pairs: median | 99 % | largest |\n|--:|--:|--:|--:|--:|--:|")
    for panels in numbers:
        points = swept(logs, panels)
        error = np.abs((points["error"] - most["error"]).to_numpy())
        loss = np.abs((points["error"] - most["error"] + points["lam"] * (points["cost"] - most["cost"])).to_numpy())
        apart = np.quantile(np.abs(errors_of(pairs, panels) - sharp), [0.5, 0.99, 1])
        told = " | ".join(f"{value:.0e}" for value in (loss.max(), error.max(), *apart))
        print(f"| {panels} | {told} |", flush=True)


def main() -> None:
    """A row per log, or per number of panels."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--panels", type=int, nargs="+")
    given = parser.parse_args()
    folder = given.data
    readers: dict[str, Any] = {}
    for path in sorted(folder.glob("*_train.csv")):
        task = "choice" if path.name.split("_", 1)[0] in CHOICE else "generation"
        options = {"prices": folder / "prices.toml", "task": task}
        readers[path.stem] = lambda path=path, options=options: rcjax.read_log(path, **options)
    if given.panels:
        jax.config.update("jax_enable_x64", True)
        compare_panels({name: read() for name, read in readers.items()}, given.panels)
        return
    print("| log | loss, points | error, points | cost, % | other cascades |\n|---|--:|--:|--:|--:|")
    largest = np.zeros(3)
    for name, read in readers.items():
        single = solved(read)
        with jax.enable_x64(True):
            double = solved(read)
        error, cost = (np.abs(single[each] - double[each]) for each in ("error", "cost"))
        loss = np.abs(single["error"] - double["error"] + double["lam"] * (single["cost"] - double["cost"]))
        other = (single["members"] != double["members"]).any(1).sum()
        relative = 100 * cost.max() / double["dearest"]
        print(
            f"| {name} | {100 * loss.max():.5f} | {100 * error.max():.4f} | {relative:.4f} | {other} of 50 |",
            flush=True,
        )
        largest = np.maximum(largest, [100 * loss.max(), relative, other])
    record.headline(
        "float32 against float64, 50 λ of each log: error + λ·cost; cost; other cascades",
        f"at most {largest[0]:.3f} points; {largest[1]:.2f} %; {largest[2]:.0f}",
    )


if __name__ == "__main__":
    record.run(main)
