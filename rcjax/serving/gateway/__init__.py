"""The gateway: a cascade behind the address that applications already call, `/v1/chat/completions` or `/v1/responses`.

Takes policies and the models behind them; gives completions or responses, a call log and the figures that operators
watch. Neither JAX nor numpy is imported here.
"""
