"""From a log to the policies that earn their place: candidates by labels, cross-validation, intervals, guarantees.

Takes a `Log`; gives a `Frontier`, how sure it is, and a policy for a target."""
