"""Policy files: a policy or a mixture, whichever the file holds. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rcjax._base import json_checks as check
from rcjax.policy.policy import Policy

if TYPE_CHECKING:
    from rcjax.policy.mixture import Mixture

__all__ = ["load_policy"]


def load_policy(path: str | os.PathLike[str]) -> Policy | Mixture:
    """Read a policy, or a mixture of policies, from a file; the same as `Policy.load(path)` or `Mixture.load(path)`.

    The "format" in the file says which of them it is.
    """
    return check.load(path, policy_from_json)


def policy_from_json(data: Any) -> Policy | Mixture:
    """A policy, or a mixture, from the object of its `to_json`, as its "format" says; problems a ValueError."""
    from rcjax.policy.mixture import Mixture  # which is built upon this module

    mixed = isinstance(data, Mapping) and data.get("format") == "rcjax-mixture"
    return Mixture.from_json(data) if mixed else Policy.from_json(data)
