"""The kind of error: its words, and a policy's record of a reference and of scores."""

import pytest

from rcjax.policy.error_kind import (
    Reference,
    Scores,
    choose_error_kind,
    recorded_error_kind,
    recorded_reference,
    recorded_scores,
)

LARGE = Reference("large", "exact", "differences")


def test_a_reference_and_scores_decide_what_is_counted():
    said = {
        choose_error_kind(None, None).predicate("3 %"): "errs on 3 %",
        choose_error_kind(LARGE, None).predicate("3 %"): "differs from large on 3 %",
        choose_error_kind(Reference("large", counts="errors"), None).predicate("3 %"): "errs on 3 %",
        choose_error_kind(Reference("large", counts="errors"), Scores()).predicate("3 %"): "loses 3 % of the score",
        recorded_error_kind({"scores": {"most": 10}}).noun: "score lost",
        Reference("{0}\x1b%s").error_kind.predicate("3 %"): r"differs from {0}\x1b%s on 3 %",
    }
    assert [*said] == [*said.values()]


def test_a_policy_records_its_reference_and_scores():
    assert recorded_reference({"same_as": LARGE.to_json()}) == LARGE
    assert recorded_scores({"scores": Scores(10.0).to_json()}) == Scores(10.0)
    assert (recorded_reference({}), recorded_scores({})) == (None, None)
    for record in ({"most": 0}, {"most": "ten"}, 10):
        with pytest.raises(ValueError, match=r"provenance\.scores"):
            recorded_scores({"scores": record})


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ({"same": "exact"}, "provenance.same_as.model"),
        ({"model": "large", "counts": "both"}, "provenance.same_as.counts"),
    ],
)
def test_the_damaged_entry_of_a_record_is_named(record, where):
    with pytest.raises(ValueError, match=where.replace(".", r"\.")):
        recorded_reference({"same_as": record})
