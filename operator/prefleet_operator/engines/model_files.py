"""Where an engine finds its model, and the shared memory that its workers talk through: the same for all engines."""

from __future__ import annotations

from typing import Final

from prefleet_operator.api import ModelSource
from prefleet_operator.engines.base import Object

MODEL_FOLDER: Final = "/models"

# Tensor-parallel workers talk through shared memory, of which a container gets 64 MB by default.
SHARED_MEMORY_VOLUME: Final[Object] = {"name": "shm", "emptyDir": {"medium": "Memory"}}
SHARED_MEMORY_MOUNT: Final[Object] = {"name": "shm", "mountPath": "/dev/shm"}


def model_place(source: ModelSource) -> str:
    """The folder, or the name on the hub, that the engine is given."""
    if source.hub is not None:
        return source.hub.repo
    path = source.pvc.path.strip("/") if source.pvc else ""
    return f"{MODEL_FOLDER}/{path}".rstrip("/")


def revision_arguments(source: ModelSource) -> tuple[str, ...]:
    """Which revision of a repository is meant, as vLLM and SGLang are told it."""
    return ("--revision", source.hub.revision) if source.hub and source.hub.revision else ()


def hub_env(source: ModelSource) -> tuple[Object, ...]:
    """The hub's access token."""
    if source.hub is None or source.hub.token_secret_ref is None:
        return ()
    return ({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": source.hub.token_secret_ref.to_resource()}},)


def volumes(source: ModelSource) -> tuple[Object, ...]:
    """Shared memory, and the model's folder."""
    if source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        return (SHARED_MEMORY_VOLUME, {"name": "model", "persistentVolumeClaim": claim})
    if source.host_path is not None:
        return (SHARED_MEMORY_VOLUME, {"name": "model", "hostPath": {"path": source.host_path, "type": "Directory"}})
    return (SHARED_MEMORY_VOLUME,)


def mounts(source: ModelSource) -> tuple[Object, ...]:
    """Where the volumes are mounted."""
    if source.hub is not None:
        return (SHARED_MEMORY_MOUNT,)
    return (SHARED_MEMORY_MOUNT, {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True})
