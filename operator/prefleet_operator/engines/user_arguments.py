"""What stands in a user's arguments of an engine: single options, and JSON that the operator merges with its own.

Engines take underscores for dashes and abbreviations for names. An abbreviation of several names ends an engine at its
start, so here it may stand for any of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from prefleet_operator.api import MERGED_ARGUMENT, InvalidSpecError, Role


def option_value(args: Sequence[str], *names: str) -> str | None:
    """The value of an option under any of its names, whether in one word or two; the last one counts."""
    value = None
    for at, arg in enumerate(args):
        name, equals, inline = arg.partition("=")
        if any(_is(name, full) for full in names):
            value = inline if equals else next(iter(args[at + 1 : at + 2]), None)
    return value


def has_flag(args: Sequence[str], name: str) -> bool:
    """Whether a flag without a value is given."""
    return any(_is(arg, name) for arg in args)


def _is(word: str, name: str) -> bool:
    """Whether the word of a command line stands for that option."""
    given = word.replace("_", "-")
    return given == name or (len(given) > len("--") and given.startswith("--") and name.startswith(given))


def split_additional_config(args: Sequence[str], role: Role) -> tuple[list[str], dict[str, Any]]:
    """The arguments without --additional-config, and its value ({} if it is not given; the last one counts).

    Raises:
        InvalidSpecError: its value is missing or not a JSON object.
    """
    rest: list[str] = []
    value = "{}"
    remaining = iter(args)
    for arg in remaining:
        name, equals, inline = arg.partition("=")
        if not _is(name, MERGED_ARGUMENT):
            rest.append(arg)
        else:
            value = inline if equals else next(remaining, "")
    return rest, json_object(value, f"spec.{role.value}.args: {MERGED_ARGUMENT}", "one JSON object after it")


def json_object(text: str, where: str, wanted: str) -> dict[str, Any]:
    """The object that `text` is.

    Raises:
        InvalidSpecError: it is none.
    """
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise InvalidSpecError(f'{where} is {shown!r}: write {wanted}, such as {{"key": "value"}}')
    return parsed
