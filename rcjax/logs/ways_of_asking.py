"""How each model of a call log was asked: as most of its calls were; those asked otherwise are of another sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rcjax._base.wording import count
from rcjax.logs.answers import Say
from rcjax.logs.checked_rows import Rows
from rcjax.logs.errors import LogError, brief, listed
from rcjax.logs.log import LeftOutWarning

UNTOLD = -1  # the way of a row that does not tell how its model was asked

_OF_THE_QUESTION, _OF_THE_DAY = "choices", "prices"  # what differs between calls that are asked alike


class WaysOfAsking:
    """Numbers the ways in which models were asked, as rows come in; at the end, says which rows were asked otherwise.

    Two ways are alike where they differ in the choices of the question, or in prices, alone. Where no way is that of
    more than half of a model's calls, all of them are used, and what they share is kept.
    """

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        """How each model was asked, from `settle` on: signal with its entries, options, and the prices of last."""
        self._texts: dict[str, int] = {}
        self._records: list[dict[str, Any]] = []
        self._signals: dict[str, Any] = {}

    def of(self, rows: Rows) -> np.ndarray:
        """(m,) the number of each row's way, `UNTOLD` where it tells none.

        Raises LogError where a model was asked for its confidence in two ways: their values cannot be compared.
        """
        if "asked" not in rows.frame.columns:
            return np.full(rows.frame.height, UNTOLD, np.int32)
        import polars as pl

        pairs = rows.frame.select("model", "asked").drop_nulls().unique(maintain_order=True)
        numbers = [self._number(text) for text in pairs["asked"]]
        for model, number in zip(pairs["model"], numbers, strict=True):
            if number != UNTOLD:
                self._require_one_signal(rows, model, self._records[number].get("signal"))
        here = dict(zip(pairs["asked"], numbers, strict=True))
        return rows.frame["asked"].replace_strict(here, default=UNTOLD, return_dtype=pl.Int32).to_numpy()

    def _number(self, text: str) -> int:
        if text not in self._texts:
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):  # the latter of one that is nested too deeply
                record = None
            is_record = isinstance(record, dict)
            self._texts[text] = len(self._records) if is_record else UNTOLD
            self._records += [record] if is_record else []
        return self._texts[text]

    def _require_one_signal(self, rows: Rows, model: str, signal: Any) -> None:
        first = self._signals.setdefault(model, signal)
        if first != signal:
            what = f"was asked for its confidence in two ways, {first} and {signal}"
            raise LogError(f"{rows.name}, model {brief(model)}: {what}: keep the rows of one")

    def settle(self, name: str, models: Mapping[str, int], model: np.ndarray, way: np.ndarray, say: Say) -> np.ndarray:
        """(N,) which of all rows were asked otherwise than most of their model, which `say` is told.

        Args:
            name: the log's, for messages.
            models: their numbers, by name.
            model: (N,) the number of each row's model.
            way: (N,) as `of` has it.
            say: takes what is to be said of the log.
        """
        otherwise, counts, various = np.zeros(len(way), bool), dict[str, int](), list[str]()
        for label, number in models.items():
            rows = np.flatnonzero((model == number) & (way != UNTOLD))
            if not rows.size:
                continue
            ways, index, times = np.unique(way[rows], return_inverse=True, return_counts=True)
            alike = self._most_alike([self._records[one] for one in ways], times)
            self.asked[label] = _shared([self._records[one] for one in ways[alike]])
            otherwise[rows[~alike[index]]] = True
            counts[label] = int(times[~alike].sum())
            various += [label] if alike.all() and len({_way(self._records[one]) for one in ways}) > 1 else []
        _tell(name, counts, len(way), various, say)
        return otherwise

    @staticmethod
    def _most_alike(records: list[dict[str, Any]], times: np.ndarray) -> np.ndarray:
        """(W,) bool: the records, told so many times each, that are alike in most calls; all where there are none."""
        ways = [_way(record) for record in records]
        calls = {way: sum(int(n) for n, other in zip(times, ways, strict=True) if other == way) for way in {*ways}}
        most = max(ways, key=lambda way: calls[way])
        return np.array([2 * calls[most] <= int(times.sum()) or way == most for way in ways])


def _way(record: Mapping[str, Any]) -> str:
    compared = {name: value for name, value in record.items() if name not in (_OF_THE_QUESTION, _OF_THE_DAY)}
    return json.dumps(compared, sort_keys=True)


def _shared(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What is the same in all records, and of options those that are; with the prices of the last that tells them."""
    first = records[0]
    shared = {name: value for name, value in first.items() if all(one.get(name) == value for one in records)}
    options = [one["options"] for one in records if isinstance(one.get("options"), dict)]
    if "options" not in shared and len(options) == len(records):
        alike = {name for name in options[0] if all(name in one and one[name] == options[0][name] for one in options)}
        shared["options"] = {name: value for name, value in options[0].items() if name in alike}
    prices = [one[_OF_THE_DAY] for one in records if one.get(_OF_THE_DAY) is not None]
    return shared | ({_OF_THE_DAY: prices[-1]} if prices else {})


def _tell(name: str, counts: Mapping[str, int], rows: int, various: list[str], say: Say) -> None:
    if any(counts.values()):
        by_model = listed([f"{model} ({number:,})" for model, number in counts.items() if number])
        what = f"{sum(counts.values()):,} of {rows:,} rows are left out: asked otherwise than most: {by_model}"
        say(LeftOutWarning, f"{name}: {what}")
    if various:
        what = f"{listed(various)}: asked in several ways, none of them in most calls"
        advice = "all are used, and only what they share is kept"
        say(LeftOutWarning, f"{name}: {count(len(various), 'model')}, {what}: {advice}")
