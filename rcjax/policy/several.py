"""What a `Mixture` and a `SegmentedPolicy` have in common: several policies that share the traffic."""

from collections.abc import Iterable, Mapping
from typing import Any

from rcjax.policy.calibration import Calibration, Transform

__all__ = ["SeveralPolicies"]


class SeveralPolicies:
    """Models, costs and calibrations of several policies; where they differ, those of the first that has the model."""

    __slots__ = ()

    policies: Any  # a tuple; the first tells what is the same of all

    @property
    def transform(self) -> Transform:
        """How raw confidences are transformed: that of the first policy."""
        return self.policies[0].transform

    @property
    def models(self) -> tuple[str, ...]:
        """All models that may be asked, by expected cost of a call."""
        cost = self.cost
        return tuple(sorted(cost, key=cost.__getitem__))

    @property
    def cost(self) -> Mapping[str, float]:
        """Expected cost of a call per model, in money per query; that of the first policy that has the model."""
        return _merged(policy.cost for policy in self.policies)

    @property
    def prices(self) -> Mapping[str, Mapping[str, float]] | None:
        """Money per million tokens by kind of token, per model, where known."""
        return _merged(policy.prices or {} for policy in self.policies) or None

    @property
    def calibrations(self) -> Mapping[str, Calibration]:
        """How each model's raw confidence becomes a calibrated one; that of the first policy that has the model."""
        return _merged(policy.calibrations for policy in self.policies)


def _merged(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One mapping of several, the first of which to have a key tells its value."""
    merged: dict[str, Any] = {}
    for mapping in mappings:
        merged = {**mapping, **merged}
    return merged
