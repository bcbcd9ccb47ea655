"""The tail of the binomial distribution."""


def binomial_tail(successes: int, n: int, probability: float) -> float:
    """P(X ≤ successes) for X ~ Bin(n, probability): an incomplete beta function (DLMF 8.17.5).

    The exact p-value of an error probability above `probability` when `successes` errors were seen in n.

    >>> round(binomial_tail(0, 59, 0.05), 4), binomial_tail(59, 59, 0.05)
    (0.0485, 1.0)
    """
    from scipy.special import betaincc  # scipy.stats has the same tail, and takes ten times as long to import

    if not 0 <= successes < n:
        return float(successes >= n)
    return float(betaincc(successes + 1, n - successes, min(max(probability, 0.0), 1.0)))
