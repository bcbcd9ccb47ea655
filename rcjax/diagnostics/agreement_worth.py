"""Does it pay to compare answers: does agreement tell right from wrong better than confidence does?

Of two models, the later one's answer is right or wrong. That it is the earlier one's answer parts the two with a
probability, the area under the ROC curve, as its own confidence does. Where agreement parts them better, a policy that
asks a third model where the two differ may pay; whether it does, at which price, `rcjax.tune` finds out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rcjax._base.wording import percent
from rcjax.goodness_of_fit.reliability import separation
from rcjax.logs.log import NO_ANSWER
from rcjax.model.pairs import pairs
from rcjax.policy.counted import ERRORS

_LEVEL = 0.95


_MOST_QUERIES = 5_000  # that are drawn again: more tell little


_MOST_DRAWS, _FEWEST_DRAWS = 60_000, 100  # of all pairs together, and of each


def agreement_worth(
    models: Sequence[str],
    confidence: np.ndarray,
    correct: np.ndarray,
    answer: np.ndarray,
    replicates: int = 1000,
    seed: int = 0,
    labelled: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """By pair: how well agreement, and the second model's confidence, tell whether the second model is right.

    `pair`; `n`, the queries that both answered, and of which it is known whether the second is right; `equal`, the
    share of them with equal answers; `accuracy_equal` and `accuracy_differ`, how often the second is right there;
    `agreement` and `confidence`, the areas under the ROC curve, and `gain`, their difference, each with an `_interval`
    of 95 % by the bootstrap over queries. NaN where the second is always right, or always wrong.

    Args:
        models: names of the k models.
        confidence: (n, k) calibrated, held out.
        correct: (n, k) whether the answer is right.
        answer: (n, k) codes, as `Log.answer` has them.
        replicates: of the bootstrap, at most.
        seed: of its draws.
        labelled: (n, k) whether it is known if the answer is right; None: of all.

    >>> right = np.array([[1, 1], [1, 1], [1, 1], [0, 0], [0, 0], [1, 0]], bool)
    >>> answer = np.array([[0, 0], [0, 0], [0, 0], [0, 1], [0, 1], [0, 1]])
    >>> row, = agreement_worth(("small", "large"), np.full((6, 2), 0.7), right, answer)
    >>> row["agreement"], row["confidence"], row["accuracy_equal"], row["accuracy_differ"]
    (1.0, 0.5, 1.0, 0.0)
    """
    links = pairs(len(models))
    draws = int(min(replicates, max(_FEWEST_DRAWS, _MOST_DRAWS // max(len(links), 1))))
    rng = np.random.default_rng(seed)
    some = np.sort(rng.permutation(len(answer))[:_MOST_QUERIES])

    def of_pair(i: int, j: int) -> dict[str, Any]:
        rows = some if labelled is None else some[labelled[some, j]]
        return _row((models[i], models[j]), confidence[rows, j], correct[rows, j], answer[rows][:, [i, j]], draws, rng)

    return [of_pair(i, j) for i, j in links]


def _row(
    pair: tuple[str, str],
    confidence: np.ndarray,
    correct: np.ndarray,
    codes: np.ndarray,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    answered = (codes != NO_ANSWER).all(1)
    equal, right, phi = (codes[:, 0] == codes[:, 1])[answered], correct[answered], confidence[answered]
    n = len(right)
    row: dict[str, Any] = {"pair": list(pair), "n": n}
    row |= {"equal": _mean(equal), "accuracy_equal": _mean(right[equal]), "accuracy_differ": _mean(right[~equal])}
    figures = {"agreement": separation(equal.astype(float), right), "confidence": separation(phi, right)}
    figures["gain"] = figures["agreement"] - figures["confidence"]
    weights = rng.multinomial(n, np.full(n, 1 / n), draws) if n else np.zeros((draws, 0), int)
    drawn = {
        "agreement": separations(equal.astype(float), right, weights),
        "confidence": separations(phi, right, weights),
    }
    drawn["gain"] = drawn["agreement"] - drawn["confidence"]
    for name, value in figures.items():
        row |= {name: value, f"{name}_interval": _interval(drawn[name])}
    return row


def separations(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R,) `separation` of n answers with R weights each, (R, n); NaN where all that count are right, or all wrong.

    >>> separations(np.array([0.2, 0.5, 0.9]), np.array([0, 1, 1]), np.array([[1, 1, 1], [1, 0, 2]])).tolist()
    [1.0, 1.0]
    """
    values, inverse = np.unique(confidence, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(values)))
    right = np.asarray(correct, float)[order] * weights[:, order]
    every = weights[:, order]
    if not len(values):
        return np.full(len(weights), np.nan)
    rights, all_ = (np.add.reduceat(counts, starts, axis=1) for counts in (right, every))
    wrongs = all_ - rights
    below = np.cumsum(wrongs, axis=1) - wrongs / 2
    number = rights.sum(1) * wrongs.sum(1)
    return np.divide((rights * below).sum(1), number, out=np.full(len(weights), np.nan), where=number > 0)


def _interval(values: np.ndarray) -> list[float]:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return [float("nan")] * 2
    return np.quantile(finite, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]).tolist()


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def remarks_on_agreement(
    rows: Sequence[Mapping[str, Any]] | None, models: Sequence[str], success: str = ERRORS.success
) -> Iterator[str]:
    """Whether comparing answers may pay, or what the log lacks to find out.

    Args:
        rows: of `agreement_worth`; None where the log tells no answers.
        models: all models.
        success: what the share of right answers is called.
    """
    if len(models) < 2:
        return
    if rows is None:
        lacks = "the log has no column answer (or answer_key), and no table of answers was given (--answers FILE)"
        yield f"whether it pays to compare models' answers cannot be told: {lacks}"
        return
    judged = [row for row in rows if np.isfinite(row["gain"])]
    if not judged:
        alike = "no answer of a later model is better than another"
        yield f"whether it pays to compare models' answers cannot be told: {alike}"
        return
    best = max(judged, key=lambda row: row["gain"])
    telling = [row for row in judged if row["gain_interval"][0] > 0]
    first, second = best["pair"]
    figures = (
        f"that {second} says what {first} says parts its better answers from its worse ones by "
        f"{_auc(best, 'agreement')}, its confidence by {_auc(best, 'confidence')}"
    )
    if telling:
        share = f"{len(telling)} of {len(judged)} pairs" if len(judged) > 1 else "the pair"
        right = f"the {success} is {percent(best['accuracy_equal'], 0)} of equal answers, and of different ones of "
        right += f"{second} {percent(best['accuracy_differ'], 0)}"
        yield f"agreement tells more than confidence in {share}: {figures}; {right}: rcjax tune weighs it by cost"
    else:
        yield f"agreement is not shown to tell more than confidence, in any pair: at best, {figures}"


def _auc(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.2f} ({low:.2f}–{high:.2f})"
