"""Asking models: one request to an endpoint, a cascade that runs a policy, and the log of what was asked.

Takes a policy and queries; gives answers, and lines of a call log that can be tuned on again."""
