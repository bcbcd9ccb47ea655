"""Rows of cost 0 beside others of the same model that cost: left out of the mean, counted and said; all 0 is free."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from helpers.command_line import run

import rcjax
from rcjax.logs import LeftOutWarning, PricesWarning
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import describe_kept_sample, pool_logs, read_kept_sample
from rcjax.logs.oddities import summarise_models
from rcjax.logs.prices import reprice

pytestmark = pytest.mark.usefixtures("float64")

COST = {"free": 0.0, "small": 1e-5, "large": 4e-4}


def frame_of(n=60, lost=("large",), samples=1):
    """A log in which every third row of some models has lost its cost."""
    rng = np.random.default_rng(0)
    rows = []
    for query in range(n):
        for model, cost in COST.items():
            for sample in range(1, samples + 1):
                paid = cost * (1 + query % 2)
                row = {"query": query, "model": model, "sample": sample, "correct": int(rng.random() < 0.7)}
                row |= {"confidence": float(rng.uniform(0.3, 0.99)), "answer": str(rng.choice(["A", "B"]))}
                rows.append(row | {"cost": 0.0 if model in lost and query % 3 == 0 else paid})
    frame = pl.DataFrame(rows)
    return frame if samples > 1 else frame.drop("sample")


def paid_means(frame, model):
    costs = frame.filter((pl.col("model") == model) & (pl.col("cost") > 0))["cost"]
    return costs.mean()


def test_lost_costs_are_left_out_of_the_mean_and_counted():
    frame = frame_of()
    with pytest.warns(LeftOutWarning, match=r"mean cost, as they cost 0 .*: 20 of 60 answers of large \(streamed"):
        log = rcjax.read_log(frame)
    assert log.models == ("free", "small", "large")
    assert log.cost[0] == 0.0
    assert [float(cost) for cost in log.cost[1:]] == pytest.approx([1.5e-5, paid_means(frame, "large")])
    assert np.asarray(log.query_cost)[1, 2] == pytest.approx(8e-4)  # what was told stays


def test_a_lost_cost_is_replaced_in_each_sample():
    frame = frame_of(samples=3)
    with pytest.warns(LeftOutWarning, match="60 of 180 answers of large"):
        log = rcjax.read_log(frame)
    costs = dict(zip(log.models, map(float, log.cost), strict=True))
    assert costs["large"] == pytest.approx(3 * paid_means(frame, "large"))


def test_an_answer_without_tokens_has_the_mean_cost():
    frame = frame_of(lost=()).drop("cost").with_columns(input_tokens=pl.lit(100.0), output_tokens=pl.lit(1.0))
    lost = (pl.col("model") == "small") & (pl.col("query") % 3 == 0)
    frame = frame.with_columns(
        pl.when(lost).then(0.0).otherwise(pl.col(name)).alias(name) for name in frame.columns[-2:]
    )
    prices = {"free": (0, 0), "small": (0.1, 0.1), "large": (1, 1)}
    with pytest.warns(LeftOutWarning, match="20 of 60 answers of small"):
        assert rcjax.read_log(frame, prices=prices).cost.tolist() == pytest.approx([0, 101e-7, 101e-6])
    zeros = frame.with_columns(pl.when(pl.col("model") == "large").then(0.0).otherwise(100.0).alias("input_tokens"))
    with pytest.raises(LogError, match="model large: its input tokens are all 0"):
        rcjax.read_log(zeros.with_columns(output_tokens=pl.lit(0.0)), prices=prices)


@pytest.mark.thorough
def test_the_command_line_warns_of_free_answers_and_means_leave_them_out(tmp_path):
    frame_of(n=120).write_csv(tmp_path / "log.csv")
    result = run("tune", tmp_path / "log.csv", "--no-bands", "--budget", "150/M")
    assert result.exit_code == 0, result.stderr
    assert "40 of 120 answers of large" in " ".join(result.stderr.split())
    frame = frame_of().with_columns(logprob=pl.col("confidence").log())
    costs = {row["model"]: row["cost"] for row in summarise_models(frame)["models"]}
    assert costs == pytest.approx({"free": 0.0, "small": 1.5e-5, "large": paid_means(frame, "large")})


def test_costs_that_are_estimates_are_counted():
    told = {"call_log": 1, "shadow": True, "error": pl.lit(None, pl.String)}
    few = (pl.col("model") == "large") & (pl.col("query") < 3)
    with pytest.warns(PricesWarning, match="3 of 180 answers is an estimate, as no tokens were counted: 3 of large$"):
        rcjax.read_log(frame_of().with_columns(cost=pl.lit(1.0), estimated=few, **told))


def test_dropped_calls_do_not_enter_the_mean_cost():
    """A call asked otherwise than most, and dear, is left out: what others have lost is the mean of those that stay."""
    frame, ways = frame_of(), [json.dumps({"signal": "choice", "options": {"temperature": t}}) for t in (0, 1)]
    asked = [ways[row["model"] == "large" and row["query"] == 1] for row in frame.iter_rows(named=True)]
    dear = (pl.col("model") == "large") & (pl.col("query") == 1)
    told = {"call_log": 1, "shadow": True, "error": pl.lit(None, pl.String)}
    frame = frame.with_columns(
        pl.when(dear).then(5.0).otherwise("cost").alias("cost"), request_settings=pl.Series(asked), **told
    )
    for table in (frame, frame.with_columns(sample=pl.lit(1))):
        with pytest.warns(LeftOutWarning, match="20 of 59 answers of large"):
            log = rcjax.read_log(table)
        assert float(log.cost[-1]) == pytest.approx(paid_means(frame.filter(~dear), "large"))


def test_a_model_without_a_price_keeps_its_logged_costs():
    frame = frame_of(lost=()).with_columns(input_tokens=pl.when(pl.col("model") == "large").then(100.0))
    frame, half = frame.with_columns(output_tokens=pl.col("input_tokens") / 10), {"large": (1.0, 2.0)}
    with pytest.warns(PricesWarning, match=r"without a price, so as dear as the log says: free, small$"):
        log = rcjax.read_log(frame, prices=half)
    assert log.cost.tolist() == pytest.approx([0.0, 1.5e-5, 120e-6])
    assert [*log.prices] == ["large"]
    for other, match in (("big", "model free: no price"), ("large", "row 1, model free: cost is missing")):
        bare = frame.with_columns(cost=pl.lit(None, pl.Float64)) if other == "large" else frame
        with pytest.raises(LogError, match=match):
            rcjax.read_log(bare, prices={other: (1.0, 2.0)})


# The part of the cost that a second question for the confidence cost


def with_signal_cost(share=0.25, **changes):
    """`frame_of`, where a share of each cost is that of a second question."""
    return frame_of(lost=(), **changes).with_columns(signal_cost=share * pl.col("cost"))


def test_a_second_question_is_a_part_of_the_cost():
    frame = with_signal_cost()
    log, plain = rcjax.read_log(frame), rcjax.read_log(frame.drop("signal_cost"))
    np.testing.assert_allclose(log.signal_cost, 0.25 * log.query_cost)
    np.testing.assert_allclose(log.answer_cost, 0.75 * plain.query_cost)
    np.testing.assert_allclose(log.single_cost, 0.75 * plain.cost)
    np.testing.assert_array_equal(log.cost, plain.cost)  # the sum stays the sum
    part = log.select(["large", "small"]).take([3, 1])
    np.testing.assert_array_equal(part.signal_cost, np.asarray(log.signal_cost)[[3, 1]][:, [2, 1]])
    assert (plain.signal_cost, len({log.digest, plain.digest})) == (None, 2)
    np.testing.assert_array_equal(plain.single_cost, plain.cost)
    np.testing.assert_array_equal(plain.answer_cost, plain.query_cost)


def test_an_empty_cell_is_an_answer_without_a_second_question(tmp_path):
    lines = frame_of(lost=()).to_dicts()
    lines[4]["signal_cost"] = lines[4]["cost"] / 2  # a call log has the field in lines with such a question only
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = rcjax.read_log(path)
    assert np.asarray(log.signal_cost)[1].tolist() == [0.0, lines[4]["cost"] / 2, 0.0]
    assert not np.asarray(log.signal_cost)[2:].any()


@pytest.mark.parametrize(("money", "problem"), [(1.0, "1.0 is more than the cost"), (-1.0, "-1.0 < 0: give the part")])
def test_a_part_that_is_no_part_is_refused_with_its_row(money, problem):
    frame = with_signal_cost().with_columns(
        signal_cost=pl.when(pl.int_range(pl.len()) == 4).then(money).otherwise("signal_cost")
    )
    with pytest.raises(LogError, match=rf"row 5, model small: signal_cost {problem}"):
        rcjax.read_log(frame)


def test_lost_costs_samples_and_prices_keep_the_share_of_the_second_question():
    frame = frame_of().with_columns(signal_cost=0.25 * pl.col("cost"))
    with pytest.warns(LeftOutWarning, match="20 of 60 answers of large"):
        lost = rcjax.read_log(frame)
    with pytest.warns(LeftOutWarning, match="several answers"):
        votes = rcjax.read_log(with_signal_cost(samples=3))
    tokens = with_signal_cost().with_columns(input_tokens=pl.lit(100.0), output_tokens=pl.lit(1.0))
    priced = rcjax.read_log(
        tokens, prices={name: {"input": 1.0, "output": 2.0} for name in COST}, models=["small", "large"]
    )
    for log in (lost, votes, priced):
        np.testing.assert_allclose(log.signal_cost, 0.25 * log.query_cost)
    assert np.asarray(priced.query_cost)[0].tolist() == pytest.approx([102e-6] * 2)


def test_carried_queries_keep_the_share_of_the_second_question():
    log = rcjax.read_log(with_signal_cost())
    carried = read_kept_sample(json.loads(json.dumps(describe_kept_sample(log))), log.task)
    prices = [{name: {"input": price, "output": price} for name in COST} for price in (1.0, 3.0)]
    dear = dataclasses.replace(log, query_cost=2 * log.query_cost, signal_cost=2 * log.signal_cost).take(slice(9))
    dear = dataclasses.replace(dear, queries=tuple(range(100, 109)))
    pooled = pool_logs(carried, dear)
    for kept in (carried, reprice(carried, *prices), pooled):
        np.testing.assert_allclose(kept.signal_cost, 0.25 * np.asarray(kept.query_cost), rtol=1e-3)
    np.testing.assert_allclose(reprice(carried, *prices).cost, 3 * carried.cost)
    assert pool_logs(carried, dataclasses.replace(dear, signal_cost=None)).signal_cost is None
    plain = dataclasses.replace(carried, signal_cost=None)
    assert not np.asarray(pool_logs(plain, dear).signal_cost)[: log.n_queries].any()
