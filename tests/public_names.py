"""What rcjax exports: at its top, and what its packages export that was there once."""

from typing import Any

import rcjax


def public_names() -> dict[str, Any]:
    """Name → what it is."""
    packages = {package: getattr(rcjax, package) for package in rcjax.PACKAGES}
    rest = {name: getattr(packages[package], name) for package, names in rcjax.PACKAGES.items() for name in names}
    return {name: getattr(rcjax, name) for name in rcjax.__all__} | rest
