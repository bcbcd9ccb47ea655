"""Logs read with a reference: whose answers are the same, what is counted, and what is refused."""

import polars as pl
import pytest

import rcjax
from rcjax.logs.errors import LogError
from rcjax.policy.error_kind import Reference

DIFFERENCES = Reference("large", counts="differences")


def table(**more):
    """Three queries of two models; the large one has not answered the last, and the small one differs in the second."""
    columns = {
        "query": [1, 1, 2, 2, 3, 3, 4, 4],
        "model": ["small", "large"] * 4,
        "answer": ["Paris", "paris.", "4", "5", "x", None, "1,000", "1000"],
        "confidence": [0.4, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.2],
        "cost": [1.0, 3.0] * 4,
    }
    return pl.DataFrame(columns | more)


def test_without_labels_answers_unlike_the_reference_count_as_wrong():
    with pytest.warns(
        rcjax.logs.LeftOutWarning, match="1 query of 4 left out, as large, the reference, gave no answer"
    ):
        log = rcjax.read_log(table(), reference="large")
    assert log.queries == (1, 2, 4)
    assert log.correct.tolist() == [[True, True], [False, True], [True, True]]
    assert (log.hand_labels, log.labelled_log, log.reference) == (None, None, DIFFERENCES)
    assert "differ from those of large" in log.describe()


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_the_reference_need_not_be_a_model_of_the_log():
    frame = pl.concat([table(), table(model=["middle", "other"] * 4)])
    log = rcjax.read_log(frame, models=["small", "middle"], reference="large")
    assert log.models == ("small", "middle")
    assert log.correct.tolist() == [[True, True], [False, False], [True, True]]


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning", "ignore::rcjax.logs.UnlabelledWarning")
def test_labels_make_the_reference_a_judge_unless_differences_are_to_count():
    frame = table(correct=[1, 0, 0, 0, None, None, None, None])
    judged = rcjax.read_log(frame, reference="large")
    assert judged.reference is not None
    assert judged.reference.counts == "errors"
    assert judged.hand_labels is not None
    assert judged.hand_labels.judges == ("judged_same",)
    assert judged.hand_labels.judged[..., 0].tolist() == [[1, 1], [0, 1], [1, 1]]
    assert judged.correct.tolist() == [[True, False], [False, False], [False, False]]
    log = rcjax.read_log(frame, reference=DIFFERENCES)
    assert (log.reference, log.hand_labels) == (DIFFERENCES, None)
    assert log.correct.tolist() == [[True, True], [False, True], [True, True]]
    assert log.labelled_log is not None
    for part, whole in ((log.labelled_log, judged), (log.take([0]).labelled_log, judged.take([0]))):
        assert part.correct.tolist() == whole.correct.tolist()
        assert part.hand_labels.labelled.tolist() == whole.hand_labels.labelled.tolist()
    assert log.select(["large", "small"]).labelled_log.models == ("large", "small")


def test_too_few_labels_for_errors_are_counted():
    frame = table(correct=[1, 0, 0, None, None, None, None, None], answer=["a", "b"] * 4)
    with pytest.warns(rcjax.logs.LeftOutWarning, match="3 labels left out, as large has fewer than 2"):
        assert rcjax.read_log(frame, reference=DIFFERENCES).labelled_log is None


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_a_grader_may_decide_which_answers_are_the_same():
    says = {"judged_same": [0, None] * 4, "same_as": "large", "graded_by_judged_same": "judge:j"}
    frame = table().with_columns(
        **{name: pl.lit(value) if isinstance(value, str) else pl.Series(value) for name, value in says.items()}
    )
    log = rcjax.read_log(frame, reference=Reference("large", "judge:j"))
    assert log.correct.tolist() == [[False, True]] * 4
    with pytest.raises(LogError, match=r"same_as large is not small: rcjax grade .* --reference small --grade judge:j"):
        rcjax.read_log(frame, reference=Reference("small", "judge:j"))
    with pytest.raises(LogError, match="is not judge:k"):
        rcjax.read_log(frame, reference=Reference("large", "judge:k"))


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_an_invalid_reference_is_refused_in_one_line():
    cases = [
        (table(), "lagre", "no model 'lagre' (did you mean 'large'"),
        (table().drop("answer"), "large", "add a column answer"),
        (table(answer=["a", None] * 4), "large", "large has answered none of its queries"),
        (table(), Reference("large", "judge:j"), "no column judged_same"),
    ]
    misses = []
    for frame, reference, words in cases:
        try:
            rcjax.read_log(frame, reference=reference)
            misses.append(f"{words}: not refused")
        except LogError as problem:
            misses += [] if words in str(problem) else [f"{words}: {problem}"]
    assert misses == []
