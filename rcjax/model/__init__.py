"""The Markov-copula model of a cascade's confidences: calibration, marginals, copulas of pairs, fitting, sampling.

Takes a `Log`; gives a `CascadeModel`, one frozen pytree."""
