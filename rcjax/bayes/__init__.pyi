"""The public names: each is imported when it is first used."""

from rcjax.bayes.hierarchy import Priors as Priors
from rcjax.bayes.posterior import (
    Posterior as Posterior,
    credible_bands as credible_bands,
    posterior_figures as posterior_figures,
    sample_posterior as sample_posterior,
)
