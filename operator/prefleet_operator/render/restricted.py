"""`security.profile: Restricted`: an engine's container that needs no root, for Pod Security's strictest profile.

Stock images run as root unless told otherwise. Two things go wrong for another user: libraries write below HOME
(models, compiled kernels), and ask for the user's name, which a number without an entry in /etc/passwd does not have.
So HOME is a volume of the pod's own, and USER says a name. The number is the one that vLLM's images keep for this
(2000, with group 0, to which such images leave what must be written); podTemplate changes it for other images.

Left out: rights on a model's volume. What is mounted read-only must be readable for that user.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from prefleet_operator.engines import EngineContainer
from prefleet_operator.engines.base import env_value

USER: Final = 2000
GROUP: Final = 0

_HOME: Final = "/var/lib/prefleet/home"
_VOLUME: Final = "prefleet-home"


def without_root(engine: EngineContainer) -> EngineContainer:
    """The container, and its workers', to be run as another user than root; as it is if it is run so anyway."""
    if engine.own_user:
        return engine
    return replace(
        engine,
        rootless=True,
        env=(*engine.env, env_value("HOME", _HOME), env_value("USER", "prefleet")),
        volumes=(*engine.volumes, {"name": _VOLUME, "emptyDir": {}}),
        mounts=(*engine.mounts, {"name": _VOLUME, "mountPath": _HOME}),
        worker=None if engine.worker is None else without_root(engine.worker),
    )
