"""The plan of a set of cascades: what it says, and that plans of one shape are alike."""

import itertools

import jax
import numpy as np
import pytest

from rcjax._core.batching import list_pairs
from rcjax.solving.bellman import make_plan, plan_cascades

pytestmark = pytest.mark.usefixtures("float64")


def everything(k):
    return [cascade for size in range(1, k + 1) for cascade in itertools.combinations(range(k), size)]


PLANS = {
    "a list": ([(0, 2), (1, 3), (0, 1, 3), (2,)], 4),
    "all": (everything(4), 4),
    "all of six": (everything(6), 6),
    "only one": ([(0,)], 1),
}


@pytest.mark.parametrize(("cascades", "k"), PLANS.values(), ids=PLANS)
def test_a_plan_describes_its_cascades(cascades, k):
    plan = jax.tree.map(np.asarray, make_plan(cascades, k))
    left, right = np.array(list_pairs(k), int).reshape(-1, 2)[plan.pairs].T
    union = tuple(sorted(set(itertools.chain(*cascades))))
    filler = [cascades[0]] * (len(plan.members) - len(cascades) - 1)
    for cascade, members, links, first, last, defers in zip(
        [*cascades, *filler, union], plan.members, plan.links, plan.first, plan.last, plan.defers, strict=True
    ):
        assert tuple(np.flatnonzero(members)) == cascade
        assert (first, last) == (cascade[0], cascade[-1])
        assert tuple(np.flatnonzero(defers)) == cascade[:-1]
        linked = zip(left[links].tolist(), right[links].tolist(), strict=True)
        assert sorted(linked) == list(itertools.pairwise(cascade))
    # Every end follows the one that it defers to; walking along the ends gives the cascade back.
    steps = {end: (rest, pair) for end, rest, pair in plan.steps.tolist()}
    order = [end for end, *_ in plan.steps.tolist()]
    for cascade, end in zip(cascades, plan.suffixes.tolist(), strict=False):
        walked = [plan.suffix_first[end]]
        while end in steps:
            rest, pair = steps[end]
            assert left[pair] == plan.suffix_first[end]
            assert right[pair] == plan.suffix_first[rest]
            assert rest not in steps or order.index(rest) < order.index(end)
            end = rest
            walked.append(plan.suffix_first[end])
        assert tuple(walked) == cascade


def test_queries_reach_a_model_before_it_passes_them_on():
    plan = jax.tree.map(np.asarray, make_plan([(0, 2), (1, 3), (0, 1, 3)], 4))
    left, right = np.array(list_pairs(4))[plan.pairs[plan.links.any(0)]].T
    for place, model in enumerate(left):
        assert model not in right[place:]


def test_cascades_of_two_to_five_of_five_models_have_one_shape():
    shapes = {
        tuple(leaf.shape for leaf in jax.tree.leaves(make_plan([cascade], 5)))
        for cascade in everything(5)
        if len(cascade) > 1
    }
    assert len(shapes) == 1


def test_a_plan_knows_whether_it_has_all_prefixes():
    assert make_plan(everything(3), 3).has_all_prefixes
    assert make_plan([(0,), (0, 1)], 3).has_all_prefixes
    assert not make_plan([(0, 1)], 3).has_all_prefixes


def named_cascades(plan, names):
    return {tuple(name for name, used in zip(names, row, strict=True) if used) for row in np.asarray(plan.members)[:-1]}


def test_thirteen_models_have_too_many_subcascades():
    models = tuple(f"m{j}" for j in range(13))
    with pytest.raises(ValueError, match="8,191 subcascades: name fewer models"):
        plan_cascades(models, "all")
    plan = plan_cascades(models, [c for size in (1, 2) for c in itertools.combinations(models, size)])
    assert len(named_cascades(plan, models)) == 13 + 13 * 12 // 2
