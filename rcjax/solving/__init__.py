"""The frontier of a fitted model: quadrature, the objective, Bellman's equation, λ grids.

Takes a `CascadeModel`; gives a `Frontier`."""
