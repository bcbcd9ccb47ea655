"""Run a cascade inside programs that forward requests to models: LiteLLM's proxy.

Takes a request to such a program, and its models; gives the answer of a policy. Only the module named after a program
imports that program.
"""
