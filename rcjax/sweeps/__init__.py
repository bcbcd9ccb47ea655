"""Sweeps: the product of logs, cascades, copulas, prices, replicates and seeds, solved in equal-shaped batches."""

from rcjax.sweeps.sweeping import Sweep, sweep

__all__ = ["Sweep", "sweep"]
