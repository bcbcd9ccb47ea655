"""What the log leaves open of the model: the posterior, and policies of least expected loss over it.

Takes a `Log`; gives draws of models, and a `Frontier`. Needs `rcjax[posterior]`."""
