"""Pod templates with values of a wrong type: the field, the value there, and the words that the refusal has to hold.

One table for two judges: the laptop's (`render/pod_shape.py`) and the API server, which refuses the pods' workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BadLeaf:
    """`path`: keys, and numbers of items, from the top of a pod template."""

    path: tuple[str | int, ...]
    value: Any
    sentence: str

    @property
    def field(self) -> str:
        """The path as a sentence tells it."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)

    def overlay(self) -> dict[str, Any]:
        """A podTemplate that holds nothing else; what it says of a container it says of the engine's."""
        laid: Any = self.value
        for part in reversed(self.path):
            laid = {part: laid} if isinstance(part, str) else [{"name": "engine"} | laid]
        found: dict[str, Any] = laid
        return found

    def lay_over(self, template: dict[str, Any]) -> None:
        """Write the value into a whole pod template, unjudged."""
        *parents, last = self.path
        place: Any = template
        for part in parents:
            place = place[part] if isinstance(part, int) else place.setdefault(part, {})
        place[last] = self.value


_ENGINE = ("spec", "containers", 0)

BAD_LEAVES = (
    BadLeaf(("metadata", "labels", "team"), 7, 'is 7: write it in quotes, "7"'),
    BadLeaf(("metadata", "annotations", "example.com/scrape"), True, 'is true: write it in quotes, "true"'),
    BadLeaf(("metadata", "labels"), ["team"], 'is ["team"]: write a mapping'),
    BadLeaf(("spec", "nodeSelector"), [1], "is [1]: write a mapping"),
    BadLeaf(("spec", "nodeSelector", "zone"), 1, 'is 1: write it in quotes, "1"'),
    BadLeaf(("spec", "terminationGracePeriodSeconds"), "abc", 'is "abc": write a whole number, without quotes'),
    BadLeaf(("spec", "terminationGracePeriodSeconds"), 1.5, "is 1.5: write a whole number, without quotes"),
    BadLeaf(("spec", "hostNetwork"), "yes", 'is "yes": write true or false, without quotes'),
    BadLeaf(("spec", "tolerations"), {"key": "gpu"}, 'is {"key": "gpu"}: write a list'),
    BadLeaf(("spec", "priorityClassName"), {"name": "high"}, 'is {"name": "high"}: write text'),
    BadLeaf(
        (*_ENGINE, "resources", "limits", "memory"), ["8Gi"], 'is ["8Gi"]: write a quantity such as 2, 500m or 8Gi'
    ),
    BadLeaf((*_ENGINE, "securityContext", "runAsUser"), "root", 'is "root": write a whole number, without quotes'),
    BadLeaf((*_ENGINE, "startupProbe", "failureThreshold"), "9", 'is "9": write a whole number, without quotes'),
)
