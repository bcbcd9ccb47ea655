"""The intervals of a model as the rules of a policy."""

import numpy as np

from rcjax.frontier.policies import ABSTAIN, NOBODY, Agreements
from rcjax.policy.answers import Comparison
from rcjax.policy.policy import Rule
from rcjax.policy.rules import Agreement


def rules(names: tuple[str, ...], j: int, bounds: np.ndarray, actions: np.ndarray) -> tuple[Rule, ...]:
    """The intervals of a model as rules, neighbours with the same action merged, empty ones left out.

    Args:
        names: of the k models.
        j: the model, by position.
        bounds: (R,) where its intervals of calibrated confidence end, the last one at 1.
        actions: (R,) the model to ask next, or itself to answer.

    >>> rules(("small", "large"), 0, np.array([0.4, 0.4, 0.7, 1.0]), np.array([1, 0, 1, 0]))
    (Rule(up_to=0.7, action='ask', model='large'), Rule(up_to=1.0, action='answer', model=None))
    """
    table: list[Rule] = []
    start = 0.0
    for end, action in zip(np.asarray(bounds, float), np.asarray(actions), strict=True):
        if end <= start:
            continue
        here = _rule(names, j, float(end), int(action))
        if table and (table[-1].action, table[-1].model) == (here.action, here.model):
            table.pop()
        table.append(here)
        start = end
    return tuple(table)


def agreements_of(
    names: tuple[str, ...], agreements: Agreements | None, index: int, compare: Comparison
) -> dict[str, Agreement]:
    """By model, what those do that compare answers, under one of L policies.

    Args:
        names: of the k models.
        agreements: (L, k); None where nobody compares answers.
        index: of the policy.
        compare: how answers are compared.

    >>> agreements_of(("a", "b", "c"), Agreements(np.array([[-1, 0, -1]]), np.array([[-1, 2, -1]])), 0, "text")
    {'b': Agreement(earlier='a', model='c', compare='text')}
    """
    if agreements is None:
        return {}
    pairs = zip(np.asarray(agreements.earlier)[index].tolist(), np.asarray(agreements.differ)[index], strict=True)
    return {
        name: Agreement(names[earlier], names[differ], compare)
        for name, (earlier, differ) in zip(names, pairs, strict=True)
        if earlier != NOBODY
    }


def _rule(names: tuple[str, ...], j: int, end: float, action: int) -> Rule:
    if action == ABSTAIN:
        return Rule(end, "abstain")
    return Rule(end, "answer") if action == j else Rule(end, "ask", names[action])
