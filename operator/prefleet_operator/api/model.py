"""What a fleet serves, and where the engine finds it: `spec.model`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from prefleet_operator.api.base import (
    Model,
    Text,
    matching,
)
from prefleet_operator.api.rule import Rule


class SecretKeyRef(Model):
    """One key of a Secret in the policy's namespace."""

    name: Text
    """The Secret's name."""
    key: Text = "token"
    """The key in it under which the value stands."""


class HubSource(Model):
    """A model repository on a hub."""

    repo: Annotated[
        Text,
        matching(
            "^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$",
            "write the repository as owner/name, such as Qwen/Qwen3-8B",
        ),
    ]
    """The repository as owner/name."""
    revision: Text | None = None
    """A branch, tag or commit; the repository's default branch if left out."""
    token_secret_ref: SecretKeyRef | None = None
    """Where the hub's access token is kept, for repositories that ask for one."""


class PvcSource(Model):
    """A model folder on a PersistentVolumeClaim, mounted read-only."""

    claim_name: Text
    """The claim's name, in the policy's namespace."""
    path: Annotated[
        str,
        Field(max_length=512),
        Rule(
            "!self.startsWith('/') && !self.contains('..')",
            "write a path inside the volume, without a leading / and without ..",
            lambda path: not path.startswith("/") and ".." not in path,
        ),
    ] = ""
    """The model's folder inside the volume; the whole volume if left out."""


HostPath = Annotated[Text, matching("^/", "write an absolute path on the node, such as /models/llama")]


class ModelSource(Model):
    """Where the model comes from: exactly one of the three."""

    hub: HubSource | None = None
    """A model repository on a hub; the pods fetch it when they start."""
    pvc: PvcSource | None = None
    """A model folder on a PersistentVolumeClaim, mounted read-only."""
    host_path: HostPath | None = None
    """A model folder on the node, mounted read-only. Many clusters forbid it: prefer pvc."""

    RULES: ClassVar = (
        Rule(
            "[has(self.hub), has(self.pvc), has(self.hostPath)].filter(given, given).size() == 1",
            "write exactly one of hub, pvc or hostPath",
            lambda source: [source.hub, source.pvc, source.host_path].count(None) == 2,
        ),
    )


class ModelSpec(Model):
    """The model that the fleet serves."""

    source: ModelSource | None = None
    """Where the engine finds the model. The simulator needs none."""
    served_name: Annotated[
        Text,
        matching("^[A-Za-z0-9][^ ]*$", "write a name without spaces that begins with a letter or a digit"),
    ]
    """The name that clients ask for."""
