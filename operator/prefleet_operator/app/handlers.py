"""kopf's part: it watches policies and tells every change. No finalizers, timers, daemons or annotations of its own.

Only raw events are handled: kopf then keeps nothing in the objects and needs no right but list and watch. When
the API server is away, it tries again for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import kopf

from prefleet_operator.api import GROUP, PLURAL, VERSION

PolicyCallback = Callable[[bool, dict[str, Any]], None]
"""Told whether the policy was deleted, and the object."""


class ForEver:
    """Pauses between tries: growing, then the same for ever."""

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1.0, 2.0, 5.0), repeat(10.0))


def make_registry(on_policy: PolicyCallback) -> kopf.OperatorRegistry:
    """kopf's handlers: how to log in, and whom to tell."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def observe(event: kopf.RawEvent, **_: Any) -> None:
        on_policy(event["type"] == "DELETED", dict(event["object"]))

    return registry


def make_settings() -> kopf.OperatorSettings:
    """Settings under which kopf only watches."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.networking.error_backoffs = ForEver()
    settings.networking.request_timeout = 15.0
    settings.watching.chunk_size = 500
    return settings


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """By service account or KUBECONFIG, tokenFile included; called again when a token has expired."""
    return kopf.login_via_client(**kwargs)
