"""Text as the pod's author wrote it -> text that is true for a process on this machine. Pure.

Four rewrites, in this order:

1. `expand`: Kubernetes' own `$(NAME)` references; `$$` is a literal dollar, an unknown name stays as it is.
2. `map_paths`: a mount path at a path boundary becomes the folder that stands for it; the longest mount wins.
3. `map_any_address`: 0.0.0.0 becomes the pod's address; a network (0.0.0.0/0) or a longer number does not.
4. `map_service_names`: NAME.NAMESPACE.svc, with or without the cluster's domain, becomes the Service's ClusterIP, since
   there is no cluster DNS; unlike a resolver it does so once, when the process is started.

A boundary is a place where no path could continue, so that paths inside JSON, `--flag=value` and colon-separated
lists are found, and `/data` is not found in `/data-2`, `/database` or `/mnt/data`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_SERVICE_NAME = re.compile(r"(?<![\w.-])([a-z][a-z0-9-]*\.[a-z0-9][a-z0-9-]*\.svc)(?:\.cluster\.local)?(?![\w.-])")
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


def map_service_names(text: str, addresses: Mapping[str, str]) -> str:
    """Replaces `name.namespace.svc` (the mapping's keys) by the address; an unknown name stays as it is."""

    def address(match: re.Match[str]) -> str:
        return addresses.get(match[1], match[0])

    return _SERVICE_NAME.sub(address, text)
