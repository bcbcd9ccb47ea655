"""Copulas and models as distributions of other libraries: a module for each, and the chain that they share.

Takes a `Copula` with marginals, or a `CascadeModel`; gives distributions of NumPyro or of TensorFlow Probability on
JAX. Neither is imported before its module is."""
