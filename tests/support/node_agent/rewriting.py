"""Text as the pod's author wrote it -> text that is true for a process on this machine. Pure.

Three rewrites, in this order:

1. `expand`: Kubernetes' own `$(NAME)` references; `$$` is a literal dollar, an unknown name stays as it is.
2. `map_paths`: a mount path at a path boundary becomes the folder that stands for it; the longest mount wins.
3. `map_any_address`: 0.0.0.0 becomes the pod's address; a network (0.0.0.0/0) or a longer number does not.

A boundary is a place where no path could continue, so that paths inside JSON, `--flag=value` and colon-separated
lists are found, and `/data` is not found in `/data-2`, `/database` or `/mnt/data`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_ANY_ADDRESS = re.compile(r"(?<![\w.])0\.0\.0\.0(?![\w./])")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by the variable's value."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def map_paths(text: str, mounts: Mapping[str, Path]) -> str:
    """Replaces every mount path (the mapping's keys) by its folder or file on this machine."""
    paths = sorted((path for path in mounts if path != "/"), key=len, reverse=True)
    if not paths:
        return text
    either = "|".join(re.escape(path) for path in paths)
    pattern = re.compile(rf"(?:(?<=file://)|(?<![\w./~-]))(?:{either})(?![\w.-])")
    return pattern.sub(lambda match: str(mounts[match[0]]), text)


def map_any_address(text: str, address: str) -> str:
    """Replaces 0.0.0.0 by the address."""
    return _ANY_ADDRESS.sub(address, text)
