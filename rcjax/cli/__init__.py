"""The command line: one module per command, which parses, calls and prints.

Importing this package is light; a command imports JAX when it starts to work."""

import sys
from contextlib import suppress


def main() -> None:
    """Run the command line with the arguments of the process. For the version, no command is imported."""
    if sys.argv[1:] == ["--version"]:
        from rcjax._base.extras import version

        with suppress(Exception):  # a stream that takes nothing: the application says so
            print(f"rcjax {version()}", flush=True)
            return
    from rcjax.cli.app import run

    run()
