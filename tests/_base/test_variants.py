"""Names of votes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from misses import in_turn

from rcjax._base.variants import (
    base_model,
    is_variant_in,
    of_model,
    require_no_rivals,
    rivals,
    samples_of,
    variant_name,
)


@given(st.text(min_size=1, max_size=20), st.integers(2, 1000))
def test_a_name_tells_model_and_number(model, number):
    name = variant_name(model, number)
    assert (base_model(name), samples_of(name)) == (model, number)


@given(st.text(max_size=20).filter(lambda text: " ×" not in text))
def test_other_names_are_those_of_models(name):
    assert (base_model(name), samples_of(name)) == (name, 1)
    assert variant_name(name, 1) == name


@in_turn("name", ["small ×1", "small ×0", "small×3", "small × 3", " ×3", "small ×3 ", "×3", "small ×03"])
def test_what_is_no_vote(name):
    assert (base_model(name), samples_of(name)) == (name, 1)


def test_rivals_are_all_pairs_of_one_model():
    names = ["small", "small ×3", "large", "small ×5", "large ×2"]
    assert rivals(names) == [(0, 1), (0, 3), (1, 3), (2, 4)]
    assert rivals(["small", "large ×3"]) == []
    require_no_rivals(["small ×3", "large"])
    with pytest.raises(ValueError, match="small → large → small ×3 asks small twice: small and small ×3 are variants"):
        require_no_rivals(["small", "large", "small ×3"])


def test_what_is_told_of_a_model_holds_of_its_votes():
    assert of_model({"small": 1}, "small ×3") == 1
    assert of_model({"small": 1, "small ×3": 0}, "small ×3") == 0
    assert of_model({"small": 1}, "large") is None
    assert is_variant_in("small ×3", ["small"])
    assert not is_variant_in("small", ["small"])
