"""The command line: a command parses options, calls a function, and prints the result.

Commands that belong together share a module; `rcjax.cli.app` lists them. Importing this package is fast; a command
imports JAX when it starts to work."""

import sys

from rcjax._base.extras import print_requirements, version
from rcjax._base.files import print_lines


def main() -> None:
    """Run the command line with the arguments of the process.

    `--version` and `--requirements` import no command: requirements are printed before typer is installed.
    """
    words = sys.argv[1:]
    if words == ["--version"]:
        sys.exit(print_lines([f"rcjax {version()}"]))
    if len(words) == 2 and words[0] == "--requirements":
        sys.exit(print_requirements(words[1]))
    from rcjax.cli.app import run

    run()
