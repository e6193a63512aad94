"""One line's values, checked: each function returns a sound value, or raises a ValueError whose text is the reason.

Text (of a CSV) and JSON values are told apart, since JSON has types: `true` is no length there, nor is "12".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from .base import MAX_TIME_S, MAX_TOKENS

Row = tuple[float, int, int, tuple[int, ...]]
"""A request before its time is counted from the first one's: time in seconds, prompt, output, blocks."""

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def checked_row(at_s: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> Row:
    """The row, if its values can be; an output of 0 counts as 1. Written so that NaN fails each comparison."""
    if not 0 <= at_s <= MAX_TIME_S:
        raise ValueError(f"the time is {at_s:g} s, not within 0 and {MAX_TIME_S:g}")
    if not 1 <= prompt <= MAX_TOKENS:
        raise ValueError(f"the prompt has {prompt} tokens, not within 1 and {MAX_TOKENS}")
    if not 0 <= output <= MAX_TOKENS:
        raise ValueError(f"the output has {output} tokens, not within 0 and {MAX_TOKENS}")
    return at_s, prompt, output or 1, blocks


def tokens_of_text(text: str) -> int:
    """A length in a CSV. A fraction of zero is allowed: tables with a gap in a column save every value as a float."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a number of tokens") from None
    return tokens_of_json(value)


def tokens_of_json(value: object) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise ValueError(f"{repr(value)[:40]} is not a number of tokens")


def seconds_of_json(value: object, per_second: float = 1.0) -> float:
    """A time; `per_second` is 1000 for milliseconds. The bound comes first: a huge integer has no float."""
    if type(value) not in (int, float):
        raise ValueError(f"{repr(value)[:40]} is not a time")
    assert isinstance(value, int | float)
    if not 0 <= value <= MAX_TIME_S * per_second:
        raise ValueError(f"{repr(value)[:40]} is not a time within 0 and {MAX_TIME_S:g} s")
    return value / per_second


def seconds_of_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time") from None


def seconds_of_date(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time, to the microsecond; without a zone it is taken as UTC.

    Not `datetime.timestamp()`, which would put a naive time into this machine's zone and jump at its clock changes.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a date with a time") from None
    return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)) / _MICROSECOND / 1e6
