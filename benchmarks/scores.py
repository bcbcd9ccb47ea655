"""Scores in place of right and wrong: the gain of tuning on scores, and the truth of intervals and promises.

    python -m benchmarks.scores --data DIR [--name triviaqa_llama] [--splits 8] [--draws 25] [--replicates 60]

The models, confidences, costs and answers right or wrong are those of a real log, {name}_train.csv and {name}_test.csv
of DIR, pooled. The logs tell no texts, so token F1 is drawn: of a right answer 1, or 4/5, 2/3, 1/2 where it says more
than was asked; of a wrong one 0, or 1/5 to 1/2 where it shares words with the right one; the less, the less sure the
model was. Each split tunes on 300 queries, by their scores and by right and wrong, and judges by the score lost on the
others, whose figures are taken for true: at eight budgets; by 90 % intervals, which should hold nine of ten but for the
noise of the others, beside those of errors where right and wrong are counted; and by promises of the loss with
95 % confidence, from `--draws` held-out logs of 150 and 300 queries, drawn with replacement from the others, which may
be false for 5 % of the logs.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.guarantee import Truth, certified
from benchmarks.paper.inputs import pooled, resplit
from benchmarks.report import markdown, progress, with_error
from rcjax.policy.error_kind import Scores
from rcjax.policy.spec import Target

TUNED, HELD_OUT, BUDGETS = 300, (150, 300), 8
MULTIPLES = (1.0, 1.1, 1.25)  # of the score that the best model loses, as a target of promises

#: F1 of answers, and how often they have it: of right ones and of wrong ones.
RIGHT, WRONG = ((1.0, 0.8, 2 / 3, 0.5), (0.6, 0.15, 0.15, 0.1)), ((0.0, 0.2, 1 / 3, 0.5), (0.65, 0.15, 0.12, 0.08))


def with_f1(log: rcjax.Log, seed: int = 0) -> rcjax.Log:
    """The log with a drawn F1 for each answer; what is surer is likelier to have a high one."""
    right, confidence = np.asarray(log.correct), np.exp(np.asarray(log.logprob))
    ranks = confidence.argsort(0).argsort(0) / len(confidence)
    lot = np.clip(0.7 * np.random.default_rng(seed).random(right.shape) + 0.3 * ranks, 0, 1 - 1e-9)
    score = np.zeros(right.shape)
    for here, (values, shares) in ((right, RIGHT), (~right, WRONG)):
        order = np.argsort(values)
        ends = np.cumsum(np.array(shares)[order])
        place = np.searchsorted(np.append(ends[:-1], 1.0), lot, side="right").clip(max=len(ends) - 1)
        score = np.where(here, np.array(values)[order][place], score)
    score = jax.device_put(score.astype(log.logprob.dtype))
    return dataclasses.replace(log, correct=score, scores=Scores())


def at_budgets(frontier: rcjax.Frontier, unseen: rcjax.Log, budgets: np.ndarray) -> np.ndarray:
    """(B,) the score that the policies for some budgets lose."""
    chosen = [frontier.index_for(Target("budget", budget)) for budget in budgets]
    return np.asarray(rcjax.replay(frontier, unseen).error, float)[chosen]


def covered(frontier: rcjax.Frontier, log: rcjax.Log, unseen: rcjax.Log, budgets: np.ndarray, replicates: int) -> float:
    """Share of the budgets for which the interval of the loss holds what is lost on unseen queries."""
    bands = rcjax.tuning.bootstrap(frontier, log, replicates=replicates)
    chosen = [frontier.index_for(Target("budget", budget)) for budget in budgets]
    low, high = np.asarray(bands.error, float)[chosen].T
    lost = at_budgets(frontier, unseen, budgets)
    return float(((low <= lost) & (lost <= high)).mean())


def one_split(whole: rcjax.Log, scored: rcjax.Log, split: int, draws: int, replicates: int) -> tuple[dict, list[dict]]:
    """(errors at budgets and coverage of a split, what was promised on each held-out log)."""
    (here, others), (plain, unseen) = resplit(scored, TUNED, split), resplit(whole, TUNED, split)
    by_score, by_right = (rcjax.tuning.select_frontier(log).frontier for log in (here, plain))
    budgets = np.geomspace(1.02 * float(here.cost.min()), float(here.cost.max()), BUDGETS)
    lost, lost_by_right = (at_budgets(frontier, others, budgets) for frontier in (by_score, by_right))
    row = {"scores": lost.mean(), "right": lost_by_right.mean()}
    row["covered"] = covered(by_score, here, others, budgets, replicates)
    row["covered_right"] = covered(by_right, plain, unseen, budgets, replicates)
    known, rng = Truth.of(by_score, others), np.random.default_rng(split)
    best = float((1 - np.asarray(here.correct, float)).mean(0).min())
    promises = []
    for n in HELD_OUT:
        for _ in range(draws):
            held_out = others.take(rng.integers(0, others.n_queries, n))
            held_out = dataclasses.replace(held_out, queries=tuple(f"held {i}" for i in range(n)))
            for multiple in MULTIPLES:
                position = certified(by_score, held_out, max_error=min(multiple * best, 0.99))
                broken = known.is_false(position, max_error=multiple * best)
                promises.append({"n": n, "target": multiple, "made": position is not None, "false": broken})
    return row, promises


def main() -> None:
    """All tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of real logs")
    parser.add_argument("--name", default="triviaqa_llama", help="which of them")
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--draws", type=int, default=25, help="held-out logs of each size, for each split")
    parser.add_argument("--replicates", type=int, default=60, help="of the bootstrap")
    arguments = parser.parse_args()
    whole = pooled(arguments.data, arguments.name)[0]
    scored, rows, promises = with_f1(whole), [], []
    for split in range(arguments.splits):
        row, made = one_split(whole, scored, split, arguments.draws, arguments.replicates)
        rows.append(row)
        promises += made
        progress(f"{split + 1} of {arguments.splits}")
    figures = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    gain = 100 * (figures["scores"] - figures["right"])
    lines = [
        ("score lost at eight budgets, tuned on scores, %", f"{100 * figures['scores'].mean():.2f}"),
        ("tuned on right and wrong, %", f"{100 * figures['right'].mean():.2f}"),
        ("difference, points", with_error(gain)),
        ("90 % intervals that hold the loss on unseen queries, %", with_error(100 * figures["covered"], "")),
        ("the same of errors, tuned on right and wrong, %", with_error(100 * figures["covered_right"], "")),
    ]
    print(f"{arguments.name}, {scored.n_queries:,} queries, token F1 drawn; {arguments.splits} splits of {TUNED}\n")
    print(markdown(pl.DataFrame(lines, schema=["what", "figure"], orient="row")))
    table = pl.DataFrame(promises).group_by("n", "target", maintain_order=True).mean()
    print("\nPromises with 95 % confidence, shares of the held-out logs\n")
    print(markdown(table.with_columns((pl.col("made", "false") * 100).round(1))))
    broken = 100 * np.mean([one["false"] for one in promises])
    record.headline("promises of a score that are false, of 95 %", f"{broken:.1f} %")


if __name__ == "__main__":
    record.run(main)
