"""What an agent is told at its start, and what everything on one node shares."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from tests.support.node_agent.addresses import Addresses
from tests.support.node_agent.api import Api
from tests.support.node_agent.backoff import BackOff

REFRESH_S = (60.0, 90.0)
"""A kubelet's period for ConfigMap volumes and its jitter. On purpose no setting: see `agent`."""


@dataclass(frozen=True)
class AgentSettings:
    """`images` are (glob over image names, folder), the first match wins; without a match `default_image`.

    An image whose folder does not exist cannot be pulled."""

    kubeconfig: Path
    node_name: str
    workdir: Path
    address_base: str | None = None
    """Two octets within 127.0.0.0/8; a range that no other agent claims is chosen if left out."""
    cpu: str = "64"
    memory: str = "256Gi"
    accelerators: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    images: tuple[tuple[str, Path], ...] = ()
    default_image: Path | None = None
    proxy_kubeconfig: Path | None = None
    """Credentials that may list Services and all pods; without them this agent forwards no Services."""
    service_lag_s: float = 0.0
    """How much later than the API its Services know of pods."""
    back_off: BackOff = field(default_factory=BackOff)
    stop_grace_s: float = 5.0
    """How long processes may take to end when the agent itself is stopped."""
    certificate: Path | None = None
    key: Path | None = None
    """The certificate that the log server shows; made on the spot if left out."""

    def image_folder(self, image: str) -> Path | None:
        matches = (folder for glob, folder in self.images if fnmatch.fnmatch(image, glob))
        return next(matches, self.default_image)


@dataclass(frozen=True)
class Host:
    """The node as its pods see it."""

    settings: AgentSettings
    api: Api
    http: aiohttp.ClientSession
    """For probes and hooks: a new connection each time, certificates not verified."""
    addresses: Addresses
    rng: random.Random

    @property
    def mark(self) -> str:
        """What every process of this agent carries in its environment."""
        return str(self.settings.workdir)

    def now(self) -> datetime:
        return datetime.now(UTC)
