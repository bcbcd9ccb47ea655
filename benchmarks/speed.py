"""Time to compile and to run `fit` and `solve_frontier`, and to solve one λ by scipy's L-BFGS-B on the same objective.

    python -m benchmarks.speed

On the synthetic log of the demo: five models, 300 queries; all 31 subcascades and 200 λ. The peer starts once, from
the middle of every model's range, and solves the full cascade alone, for 20 of the λ. The median of five runs counts;
compilation is the first call less that, tracing included. Prints a Markdown table.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import rcjax
from benchmarks import record
from benchmarks.timing import timed


def peer(model: rcjax.CascadeModel, lam: np.ndarray) -> Callable[[], np.ndarray]:
    """The losses of the full cascade at each λ by L-BFGS-B."""

    @jax.jit
    @jax.value_and_grad
    def loss(thresholds, price):
        error, cost = rcjax.solving.error_and_cost(model, thresholds)
        return error + price * cost

    bounds = np.stack([model.marginals.lowest[:-1], model.marginals.highest[:-1]], axis=1)

    def solve(price):
        def objective(thresholds):
            return tuple(np.asarray(part, float) for part in loss(jnp.asarray(thresholds), price))

        return minimize(objective, bounds.mean(1), jac=True, method="L-BFGS-B", bounds=bounds).fun

    return lambda: np.array([solve(price) for price in lam])


def main() -> None:
    """One row for each."""
    record.parser(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    log = rcjax.sample_log(300, seed=0)
    rows = {"`fit`": timed(lambda: rcjax.fit(log))}
    model = rcjax.fit(log)
    lam = np.geomspace(1e-3, 10.0, 200) / float(model.cost[-1])
    rows["`solve_frontier`, 31 cascades × 200 λ"] = timed(lambda: rcjax.solve_frontier(model, lam=lam).error)
    rows["L-BFGS-B, 1 cascade × 20 λ"] = timed(peer(model, lam[::10]))
    ours, theirs = (rows[name][1] for name in list(rows)[1:])
    print("| | compile, s | run, s |\n|---|--:|--:|")
    for name, (compiled, run, _) in rows.items():
        print(f"| {name} | {compiled:.2f} | {run:.3f} |")
    (fit_compile, fit_run, _), (solve_compile, solve_run, _), _ = rows.values()
    record.headline("`fit`, five models, 300 queries, compiled", f"{fit_run:.3f} s")
    record.headline("`solve_frontier`, all 31 subcascades × 200 λ, compiled", f"{solve_run:.3f} s")
    record.headline("compiling both", f"{fit_compile + solve_compile:.1f} s")
    record.headline("scipy's L-BFGS-B on the same objective", f"{theirs / 20 / (ours / 200 / 31):,.0f} times as long")
    print(f"\nFor one cascade and one λ the peer takes {theirs / 20 / (ours / 200 / 31):,.0f} times as long.")


if __name__ == "__main__":
    record.run(main)
