"""What every package needs and the standard library has: files written whole, figures in words, checks of JSON values.

Takes and gives plain Python values. Nothing here imports NumPy or JAX."""
