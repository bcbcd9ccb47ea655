"""The public names: each is imported when it is first used."""

from rcjax._core.pytrees import param as param
from rcjax.model.calibration import expected_calibration_error as expected_calibration_error
from rcjax.model.cascade_model import (
    CascadeModel as CascadeModel,
    demo_model as demo_model,
    load_model as load_model,
    sample_log as sample_log,
)
from rcjax.model.fitting import fit as fit
from rcjax.model.marginals import BetaMixture as BetaMixture, Marginal as Marginal
from rcjax.model.weighted import fit_copula as fit_copula
