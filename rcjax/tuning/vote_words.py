"""What several samples of a model are worth, in words."""

from collections.abc import Sequence

from rcjax._base.variants import base_model, samples_of
from rcjax.tuning.comparison import VotesGain

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def tell_votes(members: Sequence[str], votes: VotesGain, price: int) -> str:
    """Whether a policy's votes are worth their money, or one sample is enough; by queries left out.

    Args:
        members: of the policy.
        votes: what cross-validation shows.
        price: the place of the policy's λ there.

    >>> import numpy as np
    >>> gain = VotesGain(("small",), np.array([0.03]), np.array([0.01]), 0.1, 0.05, 0.1, 0.08)
    >>> tell_votes(["small ×3", "large"], gain, 0)  # doctest: +NORMALIZE_WHITESPACE
    'three samples of small are worth their money: with one sample of each model, error + λ·cost is higher by
    3.00 ± 1.00 points'
    >>> tell_votes(["large"], gain, 0)
    'one sample of small is enough'
    """
    voting = [name for name in members if samples_of(name) > 1]
    gain, spread = (100 * float(figure[price]) for figure in (votes.gain, votes.gain_se))
    if not voting:
        asked = [name for name in votes.models if name in members] or list(votes.models)
        return f"one sample of {' and of '.join(asked)} is enough"
    what = " and ".join(f"{_number(samples_of(name))} samples of {base_model(name)}" for name in voting)
    if gain <= 0:
        return f"{what} are not shown to be worth their money: on queries left out, one does as well"
    shown = "are worth their money" if gain > 2 * spread else "seem worth their money"
    than = "with one sample of each model, error + λ·cost is higher by"
    return f"{what} {shown}: {than} {gain:.2f} ± {spread:.2f} points"


def _number(samples: int) -> str:
    return _WORDS[samples] if samples < len(_WORDS) else f"{samples:,}"
