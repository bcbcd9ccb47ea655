"""`rcjax --requirements`: print the requirements of extras, before typer or any of them is installed."""

import sys

from rcjax._base.extras import requirements


def print_requirements(extras: str) -> int:
    """Print the requirements of extras, given with commas, one a line; return the exit status."""
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
