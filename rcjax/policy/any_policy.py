"""The base class of policies and of ladders: rungs, a position among them, and files.

Standard library only.
"""

from __future__ import annotations

import json
import os
import random
from hashlib import sha256
from typing import Any, ClassVar, Self

from rcjax._base.checks import SCHEMA_VERSION, header, load
from rcjax._base.codec import Amount, read
from rcjax._base.files import write_atomically


class AnyPolicy:
    """A `Policy`, or a `Ladder` of several: rungs from cheap to expensive, and a position among them.

    A `Policy` is the only rung of itself.
    """

    __slots__ = ()

    FORMAT: ClassVar[str]
    rungs: Any  # a tuple of `Policy`
    position: Any  # from 0 to the number of rungs less 1
    models: Any  # a tuple of the names of all models that may be asked
    calibrations: Any  # by model, the map from raw to calibrated confidence
    cost: Any  # by model, the expected cost of a call, in dollars
    prices: Any  # by model, dollars per million tokens by kind of token; None if they are not known
    expected: Any  # by name, the figures that the tuning promised
    provenance: Any  # the record of how the policy came about; JSON values

    budget, follows, period = None, False, None  # fields of a `Ladder`: a policy of one rung cannot move

    @property
    def costs(self) -> tuple[float, ...]:
        """Expected cost of each rung by its tuning, rising, in dollars per query."""
        return tuple(
            read(Amount, rung.expected.get("cost"), f"rungs[{index}].expected.cost")
            for index, rung in enumerate(self.rungs)
        )

    @property
    def policies(self) -> tuple[Any, ...]:
        """The two rungs on either side of the position, or the single rung at it."""
        low, share = divmod(self.position, 1)
        return self.rungs[int(low) : int(low) + (2 if share else 1)]

    @property
    def weights(self) -> tuple[float, ...]:
        """Share of the queries that each of the `policies` decides."""
        share = self.position % 1
        return (1 - share, share) if share else (1.0,)

    def choose(self, query: int | str | None = None, position: float | None = None, segment: str | None = None) -> Any:
        """Return the policy for a query: the rung that `rung_of` draws, and in it the cascade of the query's segment.

        Args:
            query: id of the query.
            position: current position of a service; by default the ladder's own.
            segment: segment of the query, if the policy has segments.
        """
        return self.rungs[self.rung_of(query, position)].of_segment(segment)

    def rung_of(self, query: int | str | None = None, position: float | None = None) -> int:
        """Return the index of the rung that decides a query.

        With the query's id, retries and other machines draw the same rung: the rung above the position if
        `draw_lot("rung", query)`, a hash of the id, is below the position's fractional part, else the rung below.
        Without an id, the rung is drawn at random.

        Args:
            query: id of the query.
            position: current position of a service; by default the ladder's own.
        """
        low, share = divmod(self.position if position is None else position, 1)
        lot = 1.0 if not share else random.random() if query is None else draw_lot("rung", query)
        return int(low) + (lot < share)

    @property
    def segment_column(self) -> str | None:
        """Column of the log that holds the segments of queries; None for a policy without segments."""
        return self.provenance.get("tuning", {}).get("segment")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    @property
    def head(self) -> dict[str, Any]:
        """First entries of a policy file: its format and the version of its schema."""
        return {"format": self.FORMAT, "schema_version": SCHEMA_VERSION}

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, the inverse of `from_json`."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build a policy from the object of `to_json`; unknown keys are ignored, ValueError for problems."""
        header(data, cls.FORMAT)
        return read(cls, data, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a JSON file atomically: a reader sees the old file or the new one, complete.

        Raises OSError if the file cannot be written; an existing file then stays as it is.
        """
        write_atomically(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a file that `save` wrote.

        Raises ValueError (place, problem, what to do) for an invalid file, OSError for an unreadable one.
        """
        return load(path, cls.from_json)


def draw_lot(purpose: str, query: int | str) -> float:
    """Return a number in [0, 1), uniform over queries and always the same for one query and purpose.

    The number is the first eight bytes of the SHA-256 of `purpose:query` (UTF-8), as a big-endian integer, over 2^64,
    rounded down to 53 bits. Lots for different purposes are independent; 7 and "7" are one query.

    >>> f"{draw_lot('rung', 'q1'):.6f}", draw_lot("rung", 7) == draw_lot("rung", "7")
    ('0.092301', True)
    """
    digest = sha256(f"{purpose}:{query}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # rounded down: never 1
