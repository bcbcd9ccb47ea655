"""The command line: one module per command, which parses, calls and prints.

Importing this package is light; a command imports JAX when it starts to work."""

from rcjax.cli.app import app, main

__all__ = ["app", "main"]
