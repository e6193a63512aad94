"""The blocks of docs/troubleshooting.md, held against what kubectl prints.

A block is the fenced text after a line `<!-- shown: NAME -->`. Two texts are the same if they differ only in what must
differ from run to run: times, ages, addresses, the made-up part of pods' names, the widths of columns, and, where
asked for, all numbers and how sure they are. With WRITE_TROUBLESHOOTING=1 in the environment a block that differs is
written anew instead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
WRITES = os.environ.get("WRITE_TROUBLESHOOTING") == "1"

_VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b127\.\d+\.\d+\.\d+(:\d+)?"), "ADDRESS"),
    (re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "-POD"),
    (re.compile(r"(?<![\w.])(\d+[smhd])+(?![\w.])( \(x\d+ over (\d+[smhd])+\))?"), "AGE"),
    (re.compile(r"-{3,}"), "---"),
    (re.compile(r" +"), " "),
    (re.compile(r" +$", re.MULTILINE), ""),
)
_NUMBERS = re.compile(r"\d[\d.,]*")


def names() -> set[str]:
    """The names of all blocks."""
    return set(re.findall(r"<!-- shown: ([\w-]+) -->", PAGE.read_text()))


def block(name: str) -> str:
    """The text of one block."""
    found = _pattern(name).search(PAGE.read_text())
    assert found is not None, f"{PAGE.name} has no block {name}"
    return found["text"]


def check(name: str, shown: str, numbers: bool = False) -> None:
    """Hold a block against what was shown; `numbers`: whatever its numbers."""
    if normal(block(name), numbers) == normal(shown, numbers):
        return
    if WRITES:
        page = _pattern(name).sub(
            lambda found: found["head"] + shown.rstrip("\n") + "\n" + found["tail"], PAGE.read_text()
        )
        PAGE.write_text(page)
        return
    assert block(name) == shown, "the page shows something else: run the test with WRITE_TROUBLESHOOTING=1"


def normal(text: str, numbers: bool = False) -> str:
    """The text without what differs from run to run."""
    for volatile, word in _VOLATILE:
        text = volatile.sub(word, text)
    return (_NUMBERS.sub("#", text.replace(" at least, its tail is unknown", "")) if numbers else text).strip()


def part_of_description(description: str, conditions: tuple[str, ...], events: tuple[str, ...]) -> str:
    """Of what `kubectl describe` prints, the conditions of these types and the warnings with these reasons."""
    lines = description.splitlines()
    begin = lines.index("  Conditions:") + 1
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("    "))
    entries = re.split(r"^(?=    Last Transition Time:)", "\n".join(lines[begin:end]), flags=re.MULTILINE)
    kept = [
        entry.rstrip() for entry in entries if (found := re.search(r"Type: +(\w+)", entry)) and found[1] in conditions
    ]
    shown = ["...", "  Conditions:", *kept, "..."]
    if not events:
        return "\n".join(shown)
    begin = next(number for number, line in enumerate(lines) if line.startswith("Events:"))
    told = [line for line in lines[begin + 3 :] if line.split()[:1] == ["Warning"] and line.split()[1] in events]
    return "\n".join([*shown, *lines[begin : begin + 3], *sorted(told)])


def _pattern(name: str) -> re.Pattern[str]:
    head, tail = rf"(?P<head><!-- shown: {name} -->\n```text\n)", r"(?P<tail>```\n)"
    return re.compile(rf"{head}(?P<text>.*?){tail}", re.DOTALL)
