"""Helpers of every package, on the standard library alone: atomic files, figures in words, checks of JSON values.

Takes and gives plain Python values. Nothing here imports NumPy or JAX."""
