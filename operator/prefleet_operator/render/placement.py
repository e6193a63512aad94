"""Where the pods of a role should stand, as wishes that a full cluster may disregard; podTemplate replaces them.

Replicas spread over nodes and zones, so that the loss of one takes as few of them as possible. The pods of one
group belong together instead: what they send each other in every step should not leave a zone. Their group is told
by the label that the LeaderWorkerSet controller gives them (clusters older than 1.31 ignore matchLabelKeys, and the
wish then holds for all groups of the role).
"""

from __future__ import annotations

from typing import Any, Final

from prefleet_operator.api import Role
from prefleet_operator.render.names import (
    GROUP_INDEX_LABEL,
    GROUP_SET_LABEL,
    groups_object_name,
    selector_labels,
)

Object = dict[str, Any]

_NODE: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_WEIGHT: Final = 100


def spread_replicas(fleet: str, role: Role) -> Object:
    """Of pods that each stand for a replica: of those, no node and no zone has more than its share."""
    return {
        "topologySpreadConstraints": [
            {
                "topologyKey": key,
                "maxSkew": 1,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_labels(fleet, role)},
            }
            for key in (_NODE, _ZONE)
        ]
    }


def join_group(fleet: str, role: Role) -> Object:
    """Of the further pods of a group: into the zone of the others."""
    group = {
        "labelSelector": {"matchLabels": {GROUP_SET_LABEL: groups_object_name(fleet, role)}},
        "matchLabelKeys": [GROUP_INDEX_LABEL],
        "topologyKey": _ZONE,
    }
    preferred = [{"weight": _WEIGHT, "podAffinityTerm": group}]
    return {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}
