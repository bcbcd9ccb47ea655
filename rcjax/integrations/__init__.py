"""A cascade inside programs that pass requests on: LiteLLM's proxy.

Takes what such a program has been asked, and the models that it has; gives it an answer of a policy. A program is
imported by the module that is named after it alone.
"""
