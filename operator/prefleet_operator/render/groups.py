"""The LeaderWorkerSet of a role whose replicas are groups of pods, one model spread over each group.

replicas counts groups, as it counts pods elsewhere; size counts the pods of a group, leader included. Leader and
workers are one engine: when one of them restarts, the whole group does. The controller of the LeaderWorkerSet makes
the pods, their DNS names and the variables by which they find each other; it must be installed.
"""

from __future__ import annotations

from typing import Any, Final

from prefleet_operator.api import InvalidSpecError, RoleSpec

Object = dict[str, Any]

MAX_NAME: Final = 47
"""A StatefulSet, of which there is one for each group (this name and the group's number), may have 52 characters:
its pods carry its name and a hash as a label."""


def render_groups(metadata: Object, spec: RoleSpec, leader: Object, worker: Object, rolling_update: Object) -> Object:
    """The object, from the pod templates of leaders and workers.

    Raises:
        InvalidSpecError: the fleet's name is too long for the names that the controller makes of it.
    """
    over = len(metadata["name"]) - MAX_NAME
    if over > 0:
        raise InvalidSpecError(
            f"metadata.name: leave out {over} characters, or nodesPerReplica: the pods of groups are named after it "
            "and would have names too long"
        )
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": spec.replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, **rolling_update},
            },
            "leaderWorkerTemplate": {
                "size": spec.nodes_per_replica,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        },
    }
