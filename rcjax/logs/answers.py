"""The answers of a log as one frame of numbers, a row for each query and model, and as matrices (n queries, k models).

Texts do not stay: queries, models and samples are numbers by first appearance, and answers are hashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rcjax.logs.cells import HandLabels
from rcjax.logs.columns import SAMPLE, judge_columns

if TYPE_CHECKING:
    import polars as pl

#: Takes what is to be said of a log that is read: the kind of warning, and its words.
Say = Callable[[type[Warning], str], None]


@dataclass(frozen=True)
class Answers:
    """The answers of some models to some queries."""

    frame: pl.DataFrame
    """`query` and `model` by number, `row` in the source, `logprob`, `correct` (the label, from 0 to 1; NaN for none),
    `cost`; and where the log tells them `answer` (a hash), `seconds`, `way` of asking, `sample`, `said` (the text of an
    answer) and the verdicts of judges."""
    queries: tuple[str, ...]
    models: tuple[str, ...]

    @property
    def answered(self) -> np.ndarray:
        """(n, k) whether there is an answer."""
        return self.matrix("row", -1) >= 0

    def models_by_query(self) -> dict[int, frozenset[str]]:
        """Which models have answered each query, by number."""
        by_query: dict[int, set[str]] = {}
        for query, model in self.frame.select("query", "model").iter_rows():
            by_query.setdefault(query, set()).add(self.models[model])
        return {query: frozenset(models) for query, models in by_query.items()}

    @property
    def labels(self) -> np.ndarray:
        """(k,) how many answers of each model have a label."""
        return np.isfinite(self.matrix("correct", np.nan)).sum(0)

    @property
    def judges(self) -> list[str]:
        """The columns of judges that say something."""
        return [name for name in judge_columns(self.frame.columns) if self.frame[name].is_not_nan().any()]

    def matrix(self, name: str, empty: float) -> np.ndarray:
        """(n, k) a column of the frame; `empty` stands where a model did not answer."""
        values = self.frame[name].to_numpy()
        whole = np.full((len(self.queries), len(self.models)), empty, values.dtype)
        whole[self.frame["query"].to_numpy(), self.frame["model"].to_numpy()] = values
        return whole

    def of(self, models: Sequence[str]) -> Answers:
        """Those of some models, in their order."""
        import polars as pl

        numbers = {self.models.index(name): number for number, name in enumerate(models)}
        frame = self.frame.filter(pl.col("model").is_in([*numbers]))
        frame = frame.with_columns(pl.col("model").replace_strict(numbers, return_dtype=pl.Int64))
        return replace(self, frame=frame, models=tuple(models))

    def with_columns(self, **columns: Any) -> Answers:
        """With other columns besides, or in place of those of the same name."""
        return replace(self, frame=self.frame.with_columns(**columns))

    def hand_labels(self, samples: Sequence[str]) -> HandLabels | None:
        """Who has labelled what; None if all answers have a label, and nobody judges.

        `samples` are the names of the samples, by number.
        """
        labelled, judges = np.isfinite(self.matrix("correct", np.nan)), self.judges
        if labelled[self.answered].all() and not judges:
            return None
        verdicts = [self.matrix(name, np.nan) for name in judges]
        judged = np.stack(verdicts, axis=-1) if verdicts else np.zeros((*labelled.shape, 0))
        numbers = self.matrix(SAMPLE, len(samples)) if SAMPLE in self.frame.columns else None
        names = None if numbers is None else np.array([*samples, ""])[numbers]
        return HandLabels(*jax.device_put([labelled, judged]), judges=tuple(judges), samples=names)


def numbered(number_of: dict[str, int], texts: pl.Series) -> np.ndarray:
    """The number of each text, by first appearance among all that are known; new ones are added."""
    import polars as pl

    here = texts.unique(maintain_order=True)
    numbers = [number_of.setdefault(text, len(number_of)) for text in here]
    return texts.replace_strict(here, numbers, return_dtype=pl.Int64).to_numpy()


def query_ids(texts: Iterable[str]) -> tuple[int | str, ...]:
    """Query ids as ints, where all are whole numbers.

    Text files do not tell 7 from "7": one rule for every source makes the same log of each.
    """
    whole = re.compile(r"0|-?[1-9][0-9]*").fullmatch
    return tuple(map(int, texts)) if all(map(whole, texts)) else tuple(texts)
