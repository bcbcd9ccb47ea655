"""Logs: reading every kind of source to the same matrices, choosing models, prices, splitting."""

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers.log_samples import HEADER, PRICES, ROWS, assert_same, costed, refusal, table, write
from hypothesis import HealthCheck, given, settings, strategies as st
from tiers import examples

from rcjax._base.tokens import Price
from rcjax.logs import IncompleteLogWarning, Log, LogError, MissingPricesError, read_log

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the logs of real LLMs are not at {DATA}")


def test_matrices_costs_and_order():
    log = read_log(table(), prices=PRICES, task="choice")
    assert log.models == ("small", "large")
    assert log.queries == (7, 3, 9)
    assert log.task == "choice"
    assert log.n_queries == 3
    np.testing.assert_array_equal(log.logprob, [[-np.inf, -0.5], [-2.5, 0.0], [-1.0, -0.25]])
    np.testing.assert_array_equal(log.correct, [[False, True], [True, True], [True, False]])
    small = (np.array([100, 200, 300]) * 0.1 + np.array([20, 40, 60]) * 0.4) / 1e6
    large = (np.array([100, 200, 300]) * 2.0 + np.array([10, 30, 50]) * 8.0) / 1e6
    np.testing.assert_allclose(log.query_cost, np.stack([small, large], axis=1), rtol=1e-6)
    np.testing.assert_allclose(log.cost, [small.mean(), large.mean()], rtol=1e-6)
    assert log.prices == {"small": Price(0.1, 0.4), "large": Price(2.0, 8.0)}
    assert log.complete.tolist() == [True] * 3
    assert repr(log) == log.describe()


def test_arrays_are_of_the_default_dtype():
    log = read_log(costed())
    assert {log.logprob.dtype, log.query_cost.dtype, log.cost.dtype} == {np.dtype("float32")}
    assert {log.correct.dtype, log.answered.dtype} == {np.dtype(bool)}
    with jax.enable_x64(True):
        wide = read_log(costed())
    assert wide.cost.dtype == wide.logprob.dtype == np.float64
    assert wide.digest == log.digest


def test_importing_is_light():
    code = "import sys, rcjax.logs; sys.exit(bool({'polars', 'narwhals', 'pandas'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


KINDS = ["csv", "parquet", "jsonl", "ndjson", "pandas", "pandas-object", "lazy", "pyarrow", "categorical", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_gives_the_same_log(kind, tmp_path):
    frame = costed()
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        frame.write_csv(path)
    elif kind == "parquet":
        frame.write_parquet(path)
    elif kind in ("jsonl", "ndjson"):
        records = [row | {"logprob": "-inf"} if row["logprob"] == -math.inf else row for row in frame.to_dicts()]
        write(tmp_path, *map(json.dumps, records), name=path.name)
    frames = {
        "pandas": lambda: frame.to_pandas().set_index("query", drop=False),
        "pandas-object": lambda: frame.to_pandas().astype(object),
        "lazy": frame.lazy,
        "pyarrow": frame.to_arrow,
        "categorical": lambda: frame.with_columns(pl.col("model").cast(pl.Categorical)),
        "text": lambda: frame.with_columns(pl.all().cast(pl.String)),
    }
    source = frames[kind]() if kind in frames else path
    log = read_log(source)
    assert_same(log, read_log(frame))
    expected = {"pandas": "pandas.DataFrame", "lazy": "polars.LazyFrame", "pyarrow": "pyarrow.Table"}
    assert log.source == expected.get(kind, str(path) if kind not in frames else log.source)


def test_the_order_of_rows_does_not_order_models_of_equal_cost():
    for frame in (costed(), costed().reverse()):
        assert read_log(frame.with_columns(cost=0.1)).models == ("large", "small")


def test_whole_number_ids_are_ints_and_others_stay_strings():
    for ids, expected in ((["1", "-2"], (1, -2)), (["01", "2"], ("01", "2")), (["1", "x"], ("1", "x"))):
        frame = costed().head(4).with_columns(query=pl.Series([ids[0]] * 2 + [ids[1]] * 2))
        assert read_log(frame).queries == expected


def test_blank_lines_and_byte_order_mark_are_no_rows(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("\ufeff" + "\r\n".join([HEADER, *ROWS[:2], "", *ROWS[2:], ""]), encoding="utf-8")
    assert read_log(path).n_queries == 2
    path = write(tmp_path, HEADER, ROWS[0], "", "7,small,0.5,0,1", *ROWS[2:])
    assert refusal(path).startswith("log.csv, line 4, model small: logprob 0.5 > 0")


def test_one_model_is_enough_for_a_replay():
    one = read_log(costed().filter(model="small"), models=["small"])
    assert_same(one, read_log(costed()).select(["small"]))
    assert_same(one, read_log(costed(), models=["small"]))
    with pytest.raises(LogError, match="no model 'tiny'"):
        read_log(costed(), models=["tiny"])


# --- choosing models ---


def test_models_selects_orders_and_ignores_the_rows_of_others():
    other = costed()[::2].with_columns(model=pl.lit("other"), correct=pl.lit(5, pl.Int64))
    frame = pl.concat([costed(), other])
    log = read_log(frame, models=["large", "small"])
    assert log.models == ("large", "small")
    assert_same(log, read_log(costed()).select(["large", "small"]))
    assert "model other: correct 5 > 1" in refusal(frame)
    message = refusal(frame, models=["large", "smal"])
    assert "no model 'smal' (did you mean 'small' for 'smal'?): it has large, small, other" in message
    assert "each once" in refusal(frame, models=["large", "large"])
    assert "at least one" in refusal(frame, models=[])


# --- prices ---


def test_prices_must_know_the_models_of_the_log_but_may_know_more():
    more = PRICES | {"other": {"input": 1, "output": 1}}
    assert_same(read_log(table(), prices=more), read_log(table(), prices=PRICES))
    message = refusal(table(), prices={"small": (1, 1), "lage": (1, 1)})
    assert message.startswith("polars.DataFrame, model large: no price (did you mean 'lage' for 'large'?)")
    assert "the prices know small, lage" in message


def test_tokens_without_prices_have_an_error_of_their_own():
    with pytest.raises(MissingPricesError, match="token counts but no prices: give prices="):
        read_log(table())
    with pytest.raises(LogError) as other:
        read_log(table().drop("input_tokens", "output_tokens"))
    assert not isinstance(other.value, MissingPricesError)


# --- incomplete logs ---


def test_queries_that_lack_a_model_stay_with_a_warning():
    with pytest.warns(IncompleteLogWarning, match="2 queries have an answer of every model") as caught:
        log = read_log(costed()[:5])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "answers per model: small 2, large 3" in str(caught[0].message)
    assert log.complete.tolist() == [True, True, False]
    assert np.asarray(log.answered).tolist() == [[True, True], [True, True], [False, True]]
    assert np.isnan(np.asarray(log.logprob)[2, 0])
    assert not log.correct[2, 0]
    assert log.query_cost[2, 0] == 0
    np.testing.assert_allclose(log.cost, [0.0015, 0.005], rtol=1e-6)  # of the answers, not of the queries
    assert np.isnan(np.asarray(log.take([2]).cost)).tolist() == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_log(costed())


# --- take, split, select ---


def many(n: int = 20) -> Log:
    rng = np.random.default_rng(0)
    columns = {
        "query": np.repeat(np.arange(n), 2),
        "model": ["a", "b"] * n,
        "logprob": -rng.exponential(size=2 * n),
    }
    columns |= {"correct": rng.integers(0, 2, 2 * n), "cost": rng.random(2 * n)}
    return read_log(pl.DataFrame(columns))


def test_split_is_a_partition_by_the_seed():
    log = many()
    first, second = log.split(0.3, seed=4)
    assert first.n_queries == 6
    assert sorted(first.queries + second.queries) == list(range(20))
    assert list(first.queries) == sorted(first.queries)
    np.testing.assert_array_equal(first.logprob, np.asarray(log.logprob)[list(first.queries)])
    np.testing.assert_allclose(first.cost, np.asarray(first.query_cost).mean(axis=0), rtol=1e-6)
    assert_same(first, log.split(0.3, seed=4)[0])
    assert first.queries != log.split(0.3, seed=5)[0].queries
    assert (first.models, first.source, first.task) == (log.models, log.source, log.task)


@pytest.mark.parametrize("fraction", [0, 1, math.nan, 0.01, 0.99])
def test_split_refuses_an_empty_side(fraction):
    with pytest.raises(LogError, match=r"^polars\.DataFrame: split fraction .* give one between 0 and 1"):
        many().split(fraction, seed=0)


def test_take_returns_the_queries_named():
    log = many()
    mask = np.arange(20) % 3 == 0
    assert log.take(mask).queries == log.take(slice(None, None, 3)).queries == (0, 3, 6, 9, 12, 15, 18)
    assert log.take([5, -1, 5]).queries == (5, 19, 5)
    np.testing.assert_array_equal(log.take([5, 2]).correct, np.asarray(log.correct)[[5, 2]])
    assert_same(log.take(jax.numpy.arange(20)), log)


@pytest.mark.parametrize("queries", [[20], [-21], [True, False], [0.5], [], np.zeros(20, dtype=bool), slice(3, 3)])
def test_take_refuses_positions_outside_the_log(queries):
    with pytest.raises(LogError, match=r"^polars\.DataFrame: "):
        many().take(queries)


def test_select_returns_the_models_named():
    log = read_log(table(), prices=PRICES)
    one = log.select(["large"])
    assert one.models == ("large",)
    assert one.prices == {"large": Price(2.0, 8.0)}
    assert one.logprob.shape == (3, 1)
    np.testing.assert_array_equal(one.cost, log.cost[1:])
    turned = log.select(["large", "small"])
    np.testing.assert_array_equal(turned.query_cost, np.asarray(log.query_cost)[:, ::-1])
    assert turned.digest != log.digest
    assert_same(turned.select(log.models), log)
    with pytest.raises(LogError, match=r"no model 'larg' \(did you mean 'large' for 'larg'\?\): it has small, large"):
        log.select(["larg"])


def test_digest_is_of_the_content():
    log = read_log(costed())
    assert len(log.digest) == 64
    assert read_log(costed().to_pandas()).digest == log.digest
    for change in ({"cost": 1e-9}, {"logprob": -1e-3}):
        ((column, step),) = change.items()
        first = pl.int_range(pl.len()) == 0
        altered = costed().with_columns(pl.when(first).then(pl.col(column) + step).otherwise(pl.col(column)))
        assert read_log(altered).digest != log.digest
    assert read_log(costed(), task="choice").digest != log.digest


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.permutations(range(24)), st.integers(0, 2**32 - 1))
def test_the_order_of_the_rows_changes_only_the_order_of_the_queries(order, seed):
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "query": np.repeat(np.arange(8), 3),
            "model": ["a", "b", "c"] * 8,
            "logprob": np.where(rng.random(24) < 0.2, -np.inf, -rng.exponential(size=24)),
            "correct": rng.random(24) < 0.5,
            "cost": rng.random(24),
        }
    )
    log, shuffled = read_log(frame), read_log(frame[list(order)])
    assert shuffled.queries == tuple(dict.fromkeys(frame["query"][list(order)].to_list()))
    back = shuffled.take([shuffled.queries.index(id) for id in log.queries])
    assert_same(back, log)
    assert shuffled.digest == log.digest
    expected = frame.pivot("model", index="query", values="logprob").select(log.models).to_numpy()
    np.testing.assert_array_equal(log.logprob, expected.astype(np.float32))


# --- real logs ---


@needs_data
@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*_t*.csv") if "answers" not in path.name))
def test_real_logs_are_read(name):
    log = read_log(DATA / name, prices=DATA / "prices.toml", task="choice" if "mmlu" in name else "generation")
    frame = pd.read_csv(DATA / name)
    assert log.n_queries == frame["query"].nunique()
    assert set(log.models) == set(frame["model"])
    assert log.complete.all()
    assert list(log.cost) == sorted(log.cost)
    wide = frame.pivot(index="query", columns="model", values="logprob").loc[list(log.queries), list(log.models)]
    np.testing.assert_array_equal(log.logprob, wide.to_numpy().astype(np.float32))
    accuracy = frame.groupby("model")["correct"].mean()[list(log.models)]
    np.testing.assert_allclose(np.asarray(log.correct).mean(axis=0), accuracy)
