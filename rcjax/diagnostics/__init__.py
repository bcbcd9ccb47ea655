"""Is the model right on this log? Goodness of fit, the Markov property, predictions against what is seen, verdicts."""

from rcjax.diagnostics.diagnosis import Diagnosis, diagnose
from rcjax.diagnostics.verdicts import LIMITS, Check

__all__ = ["LIMITS", "Check", "Diagnosis", "diagnose"]
