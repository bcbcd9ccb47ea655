"""What becomes of queries under a policy: answered wrongly, what it costs, refused."""

from typing import Any, NamedTuple


class Outcomes(NamedTuple):
    """What becomes of each query, or of queries on average; arrays of one shape, numpy's or jax's.

    >>> Outcomes(wrong=0.1, cost=2.0, refused=0.5).loss(lam=0.01, abstain_price=0.3)
    0.27
    """

    wrong: Any
    """Whether it is answered wrongly, or how likely that is."""
    cost: Any
    """The money that it costs, each answer at its model's mean cost."""
    refused: Any
    """Whether it gets no answer, or how likely that is; 0 where no model may refuse."""

    def penalty(self, abstain_price: float | None) -> Any:
        """Errors, with each refusal as so many of them; None: no model may refuse."""
        return self.wrong if abstain_price is None else self.wrong + abstain_price * self.refused

    def loss(self, lam: Any, abstain_price: float | None = None) -> Any:
        """error + abstain_price·abstention + λ·cost."""
        return self.penalty(abstain_price) + lam * self.cost

    def figures(self, refusing: bool) -> "ErrorAndCost | ErrorCostAbstention":
        """As public functions return it: without abstention, where no model may refuse."""
        return ErrorCostAbstention(*self) if refusing else ErrorAndCost(self.wrong, self.cost)


class ErrorAndCost(NamedTuple):
    """Figures of policies that answer every query."""

    error: Any
    """Probability of a wrong answer."""
    cost: Any
    """Money per query."""


class ErrorCostAbstention(NamedTuple):
    """Figures of policies that may refuse to answer."""

    error: Any
    """Probability that a wrong answer is given."""
    cost: Any
    """Money per query."""
    abstention: Any
    """Probability that no answer is given."""
