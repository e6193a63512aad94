"""The simulated engine: the runtime's own server, in the runtime's own image, for fleets without accelerators.

It needs no model and no init container. Prefill and decode hand over by kv_transfer_params as vLLM's do.
"""

from __future__ import annotations

from prefleet_operator.api import PrefillPolicySpec
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.engines.base import EXPORTER_PORT, HTTP_PORT, EngineContainer, PodRequest, policy_path

_STARTUP_LIMIT_S = 120
_DRAIN_S = 60


class Simulator:
    """Engine type Simulator."""

    metrics: EngineMetrics | None = None

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """None: it does what the runtime does."""
        return ()

    def container(self, pod: PodRequest) -> EngineContainer:
        """The server's container; the user's arguments (a cost model, say) come before the operator's."""
        return EngineContainer(
            image=pod.runtime_image,
            command=("python3", "-m", "prefleet_runtime.sim.server"),
            args=(*pod.args, *_arguments(pod)),
            ports=(("http", HTTP_PORT), ("prefleet", EXPORTER_PORT)),
            startup_period_s=1,
            startup_limit_s=_STARTUP_LIMIT_S,
            drain_s=_DRAIN_S,
            own_user=True,
            tells_unfinished=True,
        )


def _arguments(pod: PodRequest) -> tuple[str, ...]:
    return (
        *("--host", "0.0.0.0"),
        *("--port", str(HTTP_PORT)),
        *("--role", pod.role.value),
        *("--served-model-name", pod.spec.model.served_name),
        *("--policy-file", policy_path(pod.role)),
        *("--exporter-port", str(EXPORTER_PORT)),
    )
