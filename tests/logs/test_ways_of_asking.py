"""One call that was asked otherwise does not make a log forget how all others were: it is left out, and counted."""

import json
import warnings

import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs import read_log

pytestmark = pytest.mark.usefixtures("float64")
COLD = {"signal": "choice", "choices": ["A", "B"], "top": 20, "options": {"max_tokens": 1, "temperature": 0}}
HOT = {**COLD, "options": {"max_tokens": 1, "temperature": 1}}
PRICES = {"input": 0.1, "output": 0.4}


def calls(ways, samples=None):
    """A call log of two models: the small one was asked in these ways, a query each; the large one coldly."""
    rows = []
    for query, way in enumerate(ways):
        for model, asked in (("small", way), ("large", COLD)):
            row = {"call_log": 1, "query": query, "model": model, "shadow": True, "error": None, "cost": 1.0}
            row |= {"confidence": 0.5 + 0.01 * (query % 7), "correct": query % 2, "answer": "A"}
            rows.append(row | {"request_settings": None if asked is None else json.dumps(asked)})
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame if samples is None else frame.with_columns(sample=pl.lit(samples))


def read(frame):
    """(the log, what was said)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        log = read_log(frame, task="choice")
    return log, " ".join(str(one.message) for one in said if one.category is rcjax.logs.LeftOutWarning)


@pytest.mark.parametrize("samples", [None, "1"])
def test_calls_with_uncommon_settings_are_left_out(samples):
    log, said = read(calls([*[COLD] * 20, HOT, *[COLD] * 19], samples))
    assert log.request_settings["small"]["options"] == COLD["options"]
    assert "1 of 80 rows are left out: asked otherwise than most: small (1)" in said
    assert np.flatnonzero(~np.asarray(log.answered)[:, log.models.index("small")]).tolist() == [20]
    assert np.asarray(log.answered)[:, log.models.index("large")].all()


CASES = [
    # (ways of the small model, what is kept of it, what is said)
    ([COLD] * 6, COLD, ""),
    ([*[COLD] * 4, None, None], COLD, ""),
    ([*[COLD] * 3, {**COLD, "choices": ["A", "B", "C"]}, *[COLD] * 2], {"options": COLD["options"]}, ""),
    ([*[COLD] * 5, {**COLD, "prices": PRICES}], {**COLD, "prices": PRICES}, ""),
    ([*[COLD] * 3, *[HOT] * 3], {"options": {"max_tokens": 1}}, "small: asked in several ways, none of them in most"),
    ([*[COLD] * 4, {**COLD, "top": 5}, HOT], COLD, "2 of 12 rows are left out: asked otherwise than most: small (2)"),
]


def test_a_log_keeps_the_settings_that_calls_share():
    misses = []
    for place, (ways, kept, words) in enumerate(CASES):
        log, said = read(calls(ways))
        record = log.request_settings["small"]
        right = all(record.get(name) == value for name, value in kept.items())
        if not (right and (words in said if words else not said)):
            misses.append((place, record, said))
    assert misses == []


@pytest.mark.parametrize("text", ["[" * 100_000, '{"signal": ' * 100_000, "{", "", "[]"])
def test_invalid_request_settings_are_ignored(text):
    frame = calls([COLD] * 6)
    damaged = frame.with_columns(
        request_settings=pl.when(pl.col("query") == 3).then(pl.lit(text)).otherwise("request_settings")
    )
    log, said = read(damaged)
    assert not said
    assert log.request_settings["small"] == read(frame)[0].request_settings["small"]
