"""Result codes: what became of each fit or point, as a whole number in arrays and in words for people."""

from enum import IntEnum


class Status(IntEnum):
    """A result code with its meaning: subclasses list their members as `NAME = code, "meaning"`.

    A member is a whole number, so that it may stand in arrays and in jitted functions.

    >>> class Weather(Status):
    ...     FAIR = 0, "not a cloud"
    >>> Weather(0).message, Weather.FAIR + 1
    ('not a cloud', 1)
    """

    message: str

    def __new__(cls, code: int, message: str) -> "Status":
        """A member with its code and message."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        return member
