"""Models of some of the models of a fit."""

import numpy as np

from rcjax._core.batching import list_pairs, take_entries
from rcjax.model.cascade_model import CascadeModel


def of_models(model, places):
    """The model of some of its models, (m,) rising places."""
    joined = np.array(
        [i for i, pair in enumerate(list_pairs(len(model.models))) if {*places.tolist()}.issuperset(pair)], int
    )
    calibrators, marginals = take_entries((model.calibrators, model.marginals), places)
    names = tuple(model.models[place] for place in places)
    return CascadeModel(
        calibrators, marginals, take_entries(model.copulas, joined), model.cost[places], names, model.record
    )
