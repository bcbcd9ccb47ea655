"""Ids of queries under which different questions were asked: no label of them says anything, and they are counted."""

import json

import polars as pl
import pytest

from rcjax.logs import LeftOutWarning, read_log


def line(query, model, answer, digest, **more):
    """A line of a call log."""
    return {
        "call_log": 1,
        "query": query,
        "model": model,
        "logprob": -0.5,
        "answer": answer,
        "cost": 1e-5,
        "shadow": True,
        "error": None,
        "prompt_digest": digest,
        **more,
    }


@pytest.mark.parametrize(
    "intruder",
    [
        {},
        {"shadow": False},  # whose query did not go to all models
        {"error": "HTTP 500"},
        {"not_judged": "tools"},
    ],
)
@pytest.mark.parametrize("comes_first", [True, False])
def test_an_id_with_several_prompts_gets_no_label(tmp_path, intruder, comes_first):
    """Ten queries are a client's own; of ten others another client has asked something else under the same id."""
    own = [line(f"q{n}", model, "A", f"d{n}") for n in range(20) for model in ("small", "large")]
    others = [line(f"q{n}", model, "B", f"e{n}", **intruder) for n in range(10) for model in ("small", "large")]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (others + own if comes_first else own + others)))
    labels = pl.DataFrame({"query": [f"q{n}" for n in range(20)], "answer": ["A"] * 20})
    with pytest.warns(LeftOutWarning) as told:
        log = read_log(path, labels=labels)
    assert {*log.queries} == {f"q{n}" for n in range(10, 20)}
    assert log.correct.all()
    number = 20 if intruder else 40
    assert any(f"{number} of ids under which different questions were asked" in str(one.message) for one in told)


def test_an_id_with_one_prompt_stays(tmp_path):
    rows = [line(f"q{n}", model, "A", f"d{n}") for n in range(5) for model in ("small", "large")]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = pl.DataFrame({"query": [f"q{n}" for n in range(5)], "answer": ["A"] * 5})
    assert read_log(path, labels=labels).n_queries == 5


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize("in_log", [True, False])
def test_of_equal_questions_the_labelled_one_stays_before_a_complete_one(tmp_path, comes_first, in_log):
    """The complete one stayed, and the label was lost."""
    label = {"correct": True} if in_log else {}
    labelled = [line("labelled", "small", "A", "d", **label)]
    complete = [line("complete", model, "A", "d") for model in ("small", "large")]
    others = [line(f"q{n}", model, "A", f"e{n}", **label) for n in range(3) for model in ("small", "large")]
    path = tmp_path / "calls.jsonl"
    rows = [*labelled, *complete, *others] if comes_first else [*complete, *others, *labelled]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    key = [("labelled", "small"), *((f"q{n}", model) for n in range(3) for model in ("small", "large"))]
    labels = pl.DataFrame(key, schema=["query", "model"], orient="row").with_columns(correct=1)
    with pytest.warns(LeftOutWarning, match="2 of queries with the prompt of another query"):
        log = read_log(path, labels=None if in_log else labels)
    assert {*log.queries} == {"labelled", "q0", "q1", "q2"}
    assert log.labelled.sum() == 7


def test_a_right_answer_holds_for_all_queries_with_the_same_prompt(tmp_path):
    """The complete query was left without a label, or the labelled one lost."""
    rows = [line("labelled", "small", "A", "d"), *(line("complete", model, "A", "d") for model in ("small", "large"))]
    rows += [line("other", model, "B", "e") for model in ("small", "large")]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(LeftOutWarning, match="1 of queries with the prompt of another query"):
        log = read_log(path, labels=pl.DataFrame({"query": ["labelled", "other"], "answer": ["A", "C"]}))
    assert (log.queries, log.labelled.all()) == (("complete", "other"), True)
    assert log.correct.tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("comes_first", [True, False])
def test_of_equal_questions_the_one_that_most_models_answered_stays(tmp_path, comes_first):
    """The first one stayed, also where a model had failed to answer it."""
    lacking = [line("lacking", "small", "A", "d"), line("lacking", "large", None, "d", error="HTTP 500")]
    whole = [line("whole", model, "A", "d") for model in ("small", "large")]
    later, other = ([line(name, model, "A", name[:1]) for model in ("small", "large")] for name in ("d2", "other"))
    path = tmp_path / "calls.jsonl"
    rows = [*lacking, *whole, *later, *other] if comes_first else [*whole, *later, *other, *lacking]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(LeftOutWarning, match="1 failed; 3 of queries with the prompt of another query"):
        log = read_log(path, unlabelled=True)
    assert (log.queries, log.complete.all(), log.failed) == (("whole", "other"), True, ())
