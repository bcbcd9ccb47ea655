"""What a policy and a ladder of policies have in common: rungs and a position, and files of a format of their own.

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
    models: Any  # a tuple of the names of all that may be asked
    calibrations: Any  # by model, how a raw confidence becomes a calibrated one
    cost: Any  # by model, the expected money of a call
    prices: Any  # by model, money per million tokens by kind of token; None if they are not known
    expected: Any  # by name, what the tuning promised
    provenance: Any  # where it comes from; JSON values

    budget, follows, period = None, False, None  # as of a `Ladder`: a policy of one rung has nowhere to move

    @property
    def costs(self) -> tuple[float, ...]:
        """What each rung was tuned to cost, rising; money per query."""
        return tuple(
            read(Amount, rung.expected.get("cost"), f"rungs[{index}].expected.cost")
            for index, rung in enumerate(self.rungs)
        )

    @property
    def policies(self) -> tuple[Any, ...]:
        """The rungs on either side of the position, or the one that it stands on."""
        low, share = divmod(self.position, 1)
        return self.rungs[int(low) : int(low) + (2 if share else 1)]

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of the queries that goes by each of the `policies`."""
        share = self.position % 1
        return (1 - share, share) if share else (1.0,)

    def choose(self, query: int | str | None = None, position: float | None = None, segment: str | None = None) -> Any:
        """The policy that answers a query: of the rung that `rung_of` draws, that for its segment.

        Args:
            query: its id.
            position: where a service stands; by default the ladder's own.
            segment: that of the query, where policies have segments.
        """
        return self.rungs[self.rung_of(query, position)].of_segment(segment)

    def rung_of(self, query: int | str | None = None, position: float | None = None) -> int:
        """Which rung a query goes by.

        With the query's id, retries and other machines choose alike: it is the rung above the position where
        `draw_lot("rung", query)`, a hash of the id, is below its fractional part. Without one, it is drawn at random.

        Args:
            query: its id.
            position: where a service stands; by default the ladder's own.
        """
        low, share = divmod(self.position if position is None else position, 1)
        lot = 1.0 if not share else random.random() if query is None else draw_lot("rung", query)
        return int(low) + (lot < share)

    @property
    def segment_column(self) -> str | None:
        """The column of the log that told the segments of its queries; None for a policy that has none."""
        return self.provenance.get("tuning", {}).get("segment")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # a MappingProxyType cannot be pickled

    @property
    def head(self) -> dict[str, Any]:
        """How its files begin."""
        return {"format": self.FORMAT, "schema_version": SCHEMA_VERSION}

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, the inverse of `from_json`."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build it from the object of `to_json`; unknown keys are ignored, problems a ValueError."""
        header(data, cls.FORMAT)
        return read(cls, data, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a JSON file at once: who reads it sees the old file or the new one, whole.

        Raises OSError where the file cannot be written; the file that was there is then untouched.
        """
        write_atomically(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read it from a file that `save` wrote.

        Raises ValueError (place, problem, what to do) where it is not valid, OSError where it cannot be read.
        """
        return load(path, cls.from_json)


def draw_lot(purpose: str, query: int | str) -> float:
    """A number in [0, 1), uniform over queries, that a query always draws for a purpose.

    It is the first eight bytes of the SHA-256 of `purpose:query` (UTF-8), as a whole number with its high byte
    first, over 2^64, rounded to 53 bits. Lots for different purposes are independent; 7 and "7" are one query.

    >>> f"{draw_lot('rung', 'q1'):.6f}", draw_lot("rung", 7) == draw_lot("rung", "7")
    ('0.092301', True)
    """
    digest = sha256(f"{purpose}:{query}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # rounded down: never 1
