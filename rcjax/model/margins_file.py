"""Marginals as JSON values, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from rcjax.model.calibration import Calibrator
from rcjax.model.calibrator_files import fields_of, padded_rows, to_json
from rcjax.model.marginals import Atoms, Marginal
from rcjax.model.stated import size_for


def marginals_to_json(marginals: Marginal) -> dict[str, Any]:
    """Field → lists, of k models."""
    return to_json(marginals, "atoms")


def marginals_from_json(data: Mapping[str, Any], calibrators: Calibrator) -> Marginal:
    """The inverse of `marginals_to_json`; atoms have as many places as the values that are stated."""
    marginals, atoms = Marginal(**fields_of(Marginal, data)), data.get("atoms")
    if atoms is None:
        return marginals
    size = max(map(len, atoms["value"]))
    size = size_for(size) if calibrators.stated is None else max(size, calibrators.stated.logprob.shape[-1])
    value, mass = (padded_rows(atoms[name], size, end) for name, end in (("value", np.inf), ("mass", 0.0)))
    return dataclasses.replace(marginals, atoms=Atoms(jnp.minimum(value, marginals.highest[:, None]), mass))
