"""The gateway: a service that answers by policies, under `/v1/chat/completions` and `/v1/responses`.

It takes policies and the models that they ask, and gives completions or responses, a call log, and figures for
operators. It imports neither JAX nor numpy.
"""
