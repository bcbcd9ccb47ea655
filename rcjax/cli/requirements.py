"""`rcjax --requirements`: runs where neither typer nor anything else that rcjax needs is installed yet."""

import sys

from rcjax._base.extras import requirements


def print_requirements(extras: str) -> int:
    """Print the requirements of extras, whose names commas separate, one a line; the exit status."""
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
