"""The public names: each is imported when it is first used."""

from rcjax.sweeps.problems import SweepSettings as SweepSettings
from rcjax.sweeps.sweeping import Sweep as Sweep, sweep as sweep
