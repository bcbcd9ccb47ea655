"""Numerical foundations: stable scalar functions, Kendall's τ, batched pytrees, compilation.

Takes and gives arrays. Nothing here knows of logs, models or policies."""
