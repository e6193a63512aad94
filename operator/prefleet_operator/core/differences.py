"""In what two JSON values differ: one `Difference` for each place, in the words that a user knows from YAML.

Maps are compared key by key. Lists whose items all have a name (containers, volumes, variables) are compared by it,
in whatever order; other lists are one value, since an argument that moved is another command line. Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

ABSENT: Final = object()
"""Where one side has nothing."""

_MAX_SHOWN = 60
_MAX_ITEMS = 160


@dataclass(frozen=True, slots=True)
class Difference:
    """One place; `path` is such as "spec.containers[engine].args"."""

    path: str
    old: Any = ABSENT
    new: Any = ABSENT

    def __str__(self) -> str:
        if _texts(self.old) and _texts(self.new):
            return f"{self.path} {_items(self.old, self.new)}"
        shown = [_shown(value) for value in (self.old, self.new)]
        if any(value is None for value in shown):
            return f"{self.path} changed"
        if self.old is ABSENT:
            return f"{self.path} {shown[1]} added"
        if self.new is ABSENT:
            return f"{self.path} {shown[0]} removed"
        return f"{self.path} {shown[0]} -> {shown[1]}"


def differences(old: Any, new: Any, path: str = "") -> tuple[Difference, ...]:
    """Every place in which `old` and `new` differ, in the order of their keys."""
    return tuple(_walk(old, new, path))


def name_paths(found: Sequence[Difference], limit: int = 4) -> str:
    """The first places, in a sentence."""
    paths = ", ".join(each.path for each in found[:limit])
    return paths if len(found) <= limit else f"{paths} and {len(found) - limit} more"


def _walk(old: Any, new: Any, path: str) -> Iterator[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}" if path else key)
    elif _named(old) and _named(new):
        before, after = ({item["name"]: item for item in items} for items in (old, new))
        for name in sorted(before.keys() | after.keys()):
            yield from _walk(before.get(name, ABSENT), after.get(name, ABSENT), f"{path}[{name}]")
    elif old is ABSENT or new is ABSENT or old != new:
        yield Difference(path, old, new)


def _named(value: Any) -> bool:
    """Whether a value is a list of items that are told apart by a name."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and "name" in item for item in value):
        return False
    return len({item["name"] for item in value}) == len(value)


def _texts(value: Any) -> bool:
    """Whether a value is a list of texts, such as a command line."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _items(old: list[str], new: list[str]) -> str:
    """Which texts of a list went and came."""
    gone, came = (list((Counter(one) - Counter(other)).elements()) for one, other in ((old, new), (new, old)))
    shown = [f"{sign} {' '.join(items)}" for sign, items in (("-", gone), ("+", came)) if items]
    text = " ".join(shown) or "in another order"
    return text if len(text) <= _MAX_ITEMS and "\n" not in text else "changed"


def _shown(value: Any) -> str | None:
    """A value short enough to be read in a line; None if it is not."""
    if value is ABSENT:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_SHOWN and "\n" not in text and not isinstance(value, dict) else None
