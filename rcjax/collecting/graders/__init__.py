"""Graders: whether a reply is right, by its text, by the user's own program, or by a model.

Each takes an `Attempt`, what a model replied and what was asked, and gives True, False, or None if it cannot tell.
`registry` makes them from what people write: `exact`, `regex:…`, `judge:large`.
"""
