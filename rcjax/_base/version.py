"""The version of the package that is installed."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """The version, such as `"0.1.0"`; "unknown" where the package runs without having been installed."""
    try:
        return metadata.version("rcjax")
    except metadata.PackageNotFoundError:
        return "unknown"
