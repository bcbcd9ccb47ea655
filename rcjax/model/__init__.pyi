"""The public names: each is imported when it is first used."""

from rcjax.model.calibration import expected_calibration_error as expected_calibration_error
from rcjax.model.cascade_model import (
    CascadeModel as CascadeModel,
    demo_model as demo_model,
    load_model as load_model,
    sample_log as sample_log,
)
from rcjax.model.fitting import fit as fit, fit_copula as fit_copula
from rcjax.model.marginals import Marginal as Marginal
