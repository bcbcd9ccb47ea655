"""The choice of the copula: test log-loss and test area by family and method, over resplits of real logs.

    python -m benchmarks.copula_choice --data DIR [--splits 5] [--queries 300]

DIR holds pairs {name}_train.csv, {name}_test.csv and prices.toml. Each pair of files is pooled and split anew: the
model is fitted to `queries` queries and tested on the others. Calibrators and marginals are the same for every method;
only the copulas differ. Log-loss: minus the mean log-likelihood of a pair of confidences under its copula (exact for
point masses), over all pairs, minus the log-loss of the Gumbel copula by τ-inversion. Area: the area under the
error–cost curve in replay, over the costs shared with the Gumbel copula, in per cent of the Gumbel copula's area; for
the best cascades of any models, and for the full cascade. Below 0 is better. Prints a Markdown table, ± one standard
error over the splits.
"""

from pathlib import Path

import jax
import numpy as np

import rcjax
from benchmarks import record
from benchmarks.methods import areas, change, rational_tuning
from benchmarks.paper.inputs import pooled
from benchmarks.report import progress
from rcjax.model.fitting import pair_ranks
from rcjax.model.likelihood import log_likelihood

METHODS = {
    "Gumbel, τ": {"copula": "gumbel"},
    "Gumbel, likelihood": {"copula": "gumbel", "method": "likelihood"},
    "Gaussian, likelihood": {"copula": "gaussian", "method": "likelihood"},
    "Independence": {"copula": "independence"},
}


@jax.jit
def log_loss(model: rcjax.CascadeModel, log_prob: jax.Array, answered: jax.Array) -> jax.Array:
    """Mean over pairs and queries of minus the log-likelihood under the pair's copula."""
    confidence = model.calibrate(log_prob)
    first, second, weights = pair_ranks(model.marginals, confidence, answered)
    each = jax.vmap(log_likelihood)(model.copulas, first, second)
    return -(weights * each).sum() / weights.sum()


def figures(train: rcjax.Log, test: rcjax.Log) -> np.ndarray:
    """(methods, 3): log-loss, area of all cascades and of the full one, each against the first method."""
    rows, curves = [], []
    for options in METHODS.values():
        model = rcjax.fit(train, **options)
        curves.append([rational_tuning(model, test, which) for which in ("all", "full")])
        both = [areas({"new": new, "old": old}) for new, old in zip(curves[-1], curves[0], strict=True)]
        changes = [change(**area) for area in both]
        rows.append([float(log_loss(model, test.logprob, test.answered)), *changes])
    table = np.array(rows)
    table[:, 0] -= table[0, 0]
    return table


def main() -> None:
    """A row for each log and method."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--splits", type=int, default=5, help="random splits of each log")
    parser.add_argument("--queries", type=int, default=300, help="queries to fit to")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| log | copulas | log-loss | area, all cascades, % | area, full cascade, % |\n|---|---|--:|--:|--:|")
    everything = []
    for path in sorted(arguments.data.glob("*_test.csv")):
        name = path.name.removesuffix("_test.csv")
        (log, *_), found = pooled(arguments.data, name), []
        for seed in range(arguments.splits):
            progress(f"{name}, split {seed + 1} of {arguments.splits}")
            found.append(figures(*log.split(arguments.queries / len(log.queries), seed=seed)))
        everything += found
        show(name, np.stack(found))
    show("all", np.stack(everything))


def show(name: str, found: np.ndarray) -> None:
    """The rows of one log."""
    error = found.std(0, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.zeros(found.shape[1:])
    for method, mean, spread in list(zip(METHODS, found.mean(0), error, strict=True))[1:]:
        formats = ("{:+.4f} ± {:.4f}", "{:+.2f} ± {:.2f}", "{:+.2f} ± {:.2f}")
        cells = [text.format(m, s) for text, m, s in zip(formats, mean, spread, strict=True)]
        print(f"| {name} | {method} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    record.run(main)
