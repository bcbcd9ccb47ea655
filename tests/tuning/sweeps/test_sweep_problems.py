"""What a sweep solves, planned: every problem once, in batches of few shapes."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import rcjax
from rcjax.tuning.sweeps.engines import _Spread
from rcjax.tuning.sweeps.problems import (
    Data,
    Draws,
    Entry,
    Sample,
    Shape,
    filled_up,
    measure_shape,
    name_logs,
    plan_batches,
    random_state,
    size_of_training,
    training_rows,
)
from rcjax.tuning.sweeps.sweeping import read_sweep


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([40, 90, 300, 200_000]), min_size=1, max_size=12),
    replicates=st.integers(0, 40),
    seeds=st.integers(1, 3),
    batch=st.integers(1, 50),
)
def test_every_problem_is_planned_once_and_batches_have_room(sizes, replicates, seeds, batch):
    wished = SimpleNamespace(replicates=replicates, seeds=tuple(range(seeds)), batch=batch)
    shapes = {f"log{i}": Shape(3, filled_up(n + 1), filled_up(n), "choice", ("labels",)) for i, n in enumerate(sizes)}
    batches = plan_batches(shapes, wished)
    planned = [problem for each in batches for problem in each.problems]
    wanted = {(Sample(name, seed), r) for name in shapes for seed in range(seeds) for r in range(replicates + 1)}
    assert len(planned) == len(wanted)
    assert {*planned} == wanted
    for each in batches:
        assert len(each.problems) <= min(batch, each.room[1])
        assert len(each.samples) <= each.room[0]
        assert all(shapes[sample.log] == each.shape for sample in each.samples)
    assert len({(each.shape, each.room) for each in batches}) == len({*shapes.values()})


def test_a_log_has_room_for_a_query_that_does_not_count():
    settings = SimpleNamespace(cascades={"own": "labels"}, train=None)
    for n in (filled_up(50) - 1, filled_up(50)):
        assert measure_shape(rcjax.sample_log(n, seed=0), settings).queries > n


def test_problems_are_spread_in_few_turns_of_one_width():
    spread = _Spread(10, 4, SimpleNamespace(size=1))
    assert (spread.width, spread.size) == (4, 12)
    assert (_Spread(9, 4, SimpleNamespace(size=2)).width, _Spread(9, None, SimpleNamespace(size=2)).size) == (3, 10)


@given(n=st.integers(1, 10**7))
def test_logs_are_filled_up_by_half_at_most(n):
    size = filled_up(n, fewest=1)
    assert n <= size < 1.5 * n + 1
    assert filled_up(size, fewest=1) == size
    assert bin(size).count("1") <= 2


def test_draws_depend_on_the_problem_alone():
    entry = Entry("a", "a.csv", digest="0123456789abcdef00")
    rows = training_rows(100, Sample("a", 7), 60, entry)
    assert len({*rows}) == 60
    assert (np.diff(rows) > 0).all()
    assert (training_rows(100, Sample("b", 7), 60, entry) == rows).all(), "the log's content counts, not its name"
    assert (training_rows(100, Sample("a", 7), 1.0 - 1e-12, entry) == np.arange(100)).all()
    states = [random_state(Sample("a", seed), entry).generate_state(2) for seed in (7, 8)]
    filled = np.append(rows, [127] * 4)
    nothing = [None] * 5
    data = Data(*nothing, np.stack([filled, filled]), np.array([60, 60]), np.stack(states), None)

    def drawn(sample, replicate):
        return np.asarray(Draws(np.asarray(sample), np.asarray(replicate)).rows(data))

    assert (drawn(0, 0) == filled).all()
    first, second, of_other_seed = drawn(0, 1), drawn(0, 2), drawn(1, 1)
    assert {*first[:60]} < {*rows}
    assert 30 < len({*first[:60]}) < 47, "about 1 − 1/e of the rows, drawn with replacement"
    assert (first[60:] == 127).all()
    assert (first != second).any()
    assert (first != of_other_seed).any()


def test_a_sample_needs_queries():
    assert size_of_training(300, 0.5, "log") == 150
    assert size_of_training(300, None, "log") == 300
    with pytest.raises(ValueError, match=r"log\.csv: 40 queries, of which train=300 takes 300"):
        size_of_training(40, 300, "log.csv")


def test_a_log_is_named_by_its_stem_or_else_its_path():
    assert name_logs(["a/x.csv", "b/x.csv"]) == {"a/x.csv": "a/x.csv", "b/x.csv": "b/x.csv"}
    for wrong, message in (([], "logs is empty"), ("x.csv", "give a list of files")):
        with pytest.raises(ValueError, match=message):
            name_logs(wrong)


def test_paths_in_a_file_of_settings_are_relative_to_it(tmp_path):
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).touch()
    file = tmp_path / "nightly.toml"
    file.write_text('logs = ["*.csv", "c.csv", "a.csv"]\nprices = "prices.toml"\nlam = 8\n')
    found = read_sweep(file)
    assert found["logs"] == [str(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv")]
    assert found["prices"] == str(tmp_path / "prices.toml")
    assert found["out"] == str(tmp_path / "nightly")
    file.write_text('out = "here"\n[logs]\nmonday = "a.csv"\n')
    assert read_sweep(file) == {"logs": {"monday": str(tmp_path / "a.csv")}, "out": str(tmp_path / "here")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("logs = [", "correct the file"),
        ('logs = ["*.csv"]', r"no file is named \*\.csv"),
        ("logs = [1]", "give a list of files"),
        ("lam = 8", "logs: give a list of files"),
        ('log = ["a.csv"]', "log is not a setting of a sweep .did you mean 'logs'"),
        ('logs = ["a.csv"]\ndevices = 3', "devices is not a setting of a sweep"),
        ('logs = ["a.csv"]\nprices = 3', "prices: must be a text"),
    ],
)
def test_a_wrong_file_of_settings_names_its_fault(tmp_path, content, message):
    file = tmp_path / "nightly.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"nightly.toml: .*{message}"):
        read_sweep(file)


def test_a_missing_file_of_settings_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml: there is no such file"):
        read_sweep(tmp_path / "none.toml")
