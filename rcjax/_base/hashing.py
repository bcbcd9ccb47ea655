"""Lots drawn by the name of a query, the same on every machine and at every retry. Standard library only."""

from __future__ import annotations

from hashlib import sha256


def draw_lot(purpose: str, query: int | str) -> float:
    """A number in [0, 1), uniform over queries, that a query always draws for a purpose.

    It is the first eight bytes of the SHA-256 of `purpose:query` (UTF-8), as a whole number with its high byte
    first, over 2^64, rounded to 53 bits. Lots for different purposes are independent; 7 and "7" are one query.

    >>> f"{draw_lot('rung', 'q1'):.6f}", draw_lot("rung", 7) == draw_lot("rung", "7")
    ('0.092301', True)
    """
    digest = sha256(f"{purpose}:{query}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # rounded down: never 1
