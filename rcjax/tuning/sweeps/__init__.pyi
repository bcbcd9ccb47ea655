"""The public names: each is imported when it is first used."""

from rcjax.tuning.sweeps.problems import SweepSettings as SweepSettings
from rcjax.tuning.sweeps.sweeping import Sweep as Sweep, sweep as sweep
