"""Policy files: a policy, a mixture or policies of segments, whichever the file holds. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rcjax._base import json_checks as check
from rcjax.policy.policy import Policy

if TYPE_CHECKING:
    from rcjax.policy.mixture import Mixture
    from rcjax.policy.segmented import SegmentedPolicy

__all__ = ["load_policy"]


def load_policy(path: str | os.PathLike[str]) -> Policy | Mixture | SegmentedPolicy:
    """Read a policy, a mixture of policies, or policies of segments, from a file: `Policy.load(path)` and its like.

    The "format" in the file says which of them it is.
    """
    return check.load(path, policy_from_json)


def policy_from_json(data: Any) -> Policy | Mixture | SegmentedPolicy:
    """A policy, or several in one, from the object of its `to_json`, as its "format" says; problems a ValueError."""
    from rcjax.policy.mixture import Mixture  # which is built upon this module
    from rcjax.policy.segmented import SegmentedPolicy

    several = {"rcjax-mixture": Mixture, "rcjax-segments": SegmentedPolicy}
    kind = data.get("format") if isinstance(data, Mapping) else None
    return several.get(kind if isinstance(kind, str) else "", Policy).from_json(data)
