"""Frontiers and policies as arrays: what solvers give and everything after them takes.

Takes points in order of λ; gives the policy for a target, mixtures, intervals, files."""
