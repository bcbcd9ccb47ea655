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
        sys.exit(print_requirements(words[1]))
    from rcjax.cli.app import run

    run()


def print_requirements(extras: str) -> int:
    """Print the requirements of extras, whose names commas separate, one a line; the exit status."""
    from rcjax._base.extras import requirements

    try:
        lines = requirements(*filter(None, map(str.strip, extras.split(","))))
    except (ValueError, LookupError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as problem:
        print(f"error: standard output: {problem.strerror}", file=sys.stderr)
        return 1
    return 0
