"""The command line: one module per command, which parses, calls and prints.

Importing this package is light; a command imports JAX when it starts to work."""

import sys
from contextlib import suppress


def main() -> None:
    """Run the command line with the arguments of the process. For the version, no command is imported.

    Nor is any for the requirements of an extra, which are asked for before typer is there.
    """
    words = sys.argv[1:]
    if words == ["--version"]:
        from rcjax._base.extras import version

        with suppress(Exception):  # a stream that takes nothing: the application says so
            print(f"rcjax {version()}", flush=True)
            return
    if len(words) == 2 and words[0] == "--requirements":
        from rcjax.cli.requirements import print_requirements

        sys.exit(print_requirements(words[1]))
    from rcjax.cli.app import run

    run()
